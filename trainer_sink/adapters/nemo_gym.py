"""NeMo Gym: what an agent server's `/run` returns, made from a session's trajectory. Pure; `nemo_gym_agent` asks the API.

Follows nemo-gym 0.5.1: `BaseVerifyResponse` (the request, a Responses object, a reward), whose output items carry `prompt_token_ids`,
`generation_token_ids` and `generation_log_probs`, each prompt going on from all tokens before. That is one unbroken sequence: the
main line of a session. Its other traces are counted and left out; train those with one of the other adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:  # its package needs httpx, this module doesn't
    from trainer_sink.client.values import ApiTrace, ApiTrajectory

FAILURE_CLASS_KEY: Final = "_ng_failure_class"
FAILURE_CLASS: Final = "polynya_error"
# What a run answers itself; stale copies in a row that was a result before would collide with it.
RESERVED_KEYS: Final = frozenset(
    {"reward", "response", "error", "polynya", FAILURE_CLASS_KEY, "_ng_no_persist", "_ng_failure_terminal"}
)
# Sampling of `responses_create_params`, and what it is called in a task.
_SAMPLING: Final = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens"}

Item = dict[str, Any]


def task_of(row: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The task for one run of a data set's row: the template with the row's instruction and sampling, one session.

    The instruction is the text of the row's user messages; the row's `polynya` mapping wins over the template (`evaluator`,
    `prepare`, `runtime` … of this very problem). ValueError for a row without a word to say.
    """
    params = row["responses_create_params"]
    instruction = _instruction(params.get("input", ""))
    own = dict(row.get("polynya") or {})
    if not instruction and not own.get("instruction"):
        raise ValueError("the row has no user message: responses_create_params.input must hold the problem's text")
    sampling = {ours: params[theirs] for theirs, ours in _SAMPLING.items() if params.get(theirs) is not None}
    task = {**template, "instruction": instruction, **own, "num_samples": 1}
    if sampling:
        task["sampling"] = {**(template.get("sampling") or {}), **sampling, **(own.get("sampling") or {})}
    return task


def _instruction(given: Any) -> str:
    if isinstance(given, str):
        return given
    return "\n\n".join(_text(m.get("content")) for m in given if m.get("role") == "user").strip()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))


def verify_response(row: Mapping[str, Any], trajectory: ApiTrajectory) -> dict[str, Any]:
    """The answer of `/run` for a session's result: `BaseVerifyResponse` with `polynya` beside it.

    A session without a reward or a trained token is a failure (see `failure`): NeMo Gym tries those again.
    """
    main = main_line(trajectory.traces)
    if trajectory.reward is None or main is None:
        why = trajectory.error or f"it gave {'no reward' if trajectory.reward is None else 'nothing to train'}"
        return failure(row, f"session {trajectory.session_id} ended {trajectory.status}: {why}")
    response = _response(trajectory.session_id, output_items(main), main)
    ours = {
        "session_id": trajectory.session_id,
        "trajectory_id": trajectory.trajectory_id,
        "status": trajectory.status,
        "traces": len(trajectory.traces),
        "left_out_traces": len(trajectory.traces) - 1,
    }
    return _kept(row) | {"response": response, "reward": trajectory.reward, "polynya": ours}


def failure(row: Mapping[str, Any], error: str) -> dict[str, Any]:
    """The answer of `/run` when there is no result: reward 0 under the mark by which NeMo Gym keeps it apart and tries again."""
    empty = _message("msg_0", "", [])
    marks = {FAILURE_CLASS_KEY: FAILURE_CLASS, "error": error}
    return _kept(row) | {"response": _response("failed", [empty], None), "reward": 0.0} | marks


def main_line(traces: Sequence[ApiTrace]) -> ApiTrace | None:
    """The trace of branch `main` with the most trained tokens, else of any branch; None when nothing is trained."""
    trained = [t for t in traces if t.loss_mask.any()]
    chosen = [t for t in trained if t.branch == "main"] or trained
    return max(chosen, key=lambda t: int(t.loss_mask.sum()), default=None)


def output_items(trace: ApiTrace) -> list[Item]:
    """The trace's replies and tool results as Responses items; the last item of each trained reply carries its tokens.

    A reply that isn't trained here is an item without tokens: its ids stand in the next one's prompt.
    """
    turns = list(trace.raw["turns"])
    messages = list(trace.messages)
    replies = [i for i, m in enumerate(messages) if m.get("role") == "assistant"]
    first = len(replies) - len(turns)  # the ones before were given with the task
    items: list[Item] = []
    for place, message in enumerate(messages[replies[first] :] if first >= 0 and turns else []):
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id", ""))
            items.append({"type": "function_call_output", "call_id": call_id, "output": _text(message.get("content"))})
        elif message.get("role") == "assistant":
            turn = turns[sum(r < replies[first] + place for r in replies) - first]
            items += _reply(message, turn, trace, len(items))
    if not items:
        raise ValueError(f"trace {trace.index} has {len(turns)} turns and {len(replies)} replies in its messages")
    return items


def _reply(message: Mapping[str, Any], turn: Mapping[str, Any], trace: ApiTrace, number: int) -> list[Item]:
    calls = message.get("tool_calls") or []
    text = _text(message.get("content"))
    items = [_message(f"msg_{number}", text, [])] if text or not calls else []
    items += [_call(c) for c in calls]
    if turn["is_trained"]:
        start, end = int(turn["start"]), int(turn["end"])
        items[-1]["prompt_token_ids"] = np.concatenate([trace.prompt_ids, trace.response_ids[:start]]).tolist()
        items[-1]["generation_token_ids"] = trace.response_ids[start:end].tolist()
        items[-1]["generation_log_probs"] = trace.logprobs[start:end].tolist()
    return items


def _call(call: Mapping[str, Any]) -> Item:
    function = call.get("function") or call
    arguments = function.get("arguments", "")
    return {
        "type": "function_call",
        "call_id": str(call.get("id", "")),
        "name": str(function.get("name", "")),
        "arguments": arguments if isinstance(arguments, str) else _json(arguments),
    }


def _json(value: Any) -> str:
    from schemas import json_text

    return json_text.dump(value)


def _message(ident: str, text: str, annotations: list[Any]) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": annotations}]
    return {"type": "message", "id": ident, "role": "assistant", "status": "completed", "content": content}


def _response(ident: str, items: list[Item], trace: ApiTrace | None) -> dict[str, Any]:
    sampled = 0 if trace is None else int(trace.loss_mask.sum())
    prompt = 0 if trace is None else len(trace.prompt_ids)
    return {
        "id": f"polynya-{ident}",
        "created_at": 0.0,
        "model": "polynya",
        "object": "response",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": prompt,
            # Newer releases of the vendor's SDK want the second one, older ones let it pass.
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        },
    }


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in RESERVED_KEYS}
