"""slime: a group as `Sample` dicts, for `Sample.from_dict` in a `--rollout-function-path` function.

Follows the fields of `slime.utils.types.Sample` in slime 0.3.1. A function of that option returns prompts x rollouts x samples;
all samples of one rollout share `rollout_id`, by which slime's loss counts the rollout once (its token-weighted mean), however
many traces it has. So our session weights are slime's own and aren't multiplied in again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from schemas.records import ScoredTrajectory, Status
from trainer_sink.groups import Group
from trainer_sink.sequences import TrainingSequence, mean_reward

Sample = dict[str, Any]

_CUT: Final = {Status.TIMEOUT: "truncated", Status.CANCELLED: "aborted"}
_STATUS: Final = {**_CUT, Status.COMPLETED: "completed"}


def samples_of(
    group: Group,
    sequences: Sequence[TrainingSequence],
    *,
    group_index: int,
    first_index: int,
    reward: Literal["raw", "advantage"] = "raw",
    ungraded: float | None = None,
    filler_id: int = 0,
) -> list[list[Sample]]:
    """One list for each session of the group, in index order, with a sample for each of its traces.

    `first_index + the session's index` becomes `index` and `rollout_id`, so leave `group.size` numbers to each group.
    `reward="advantage"` puts our advantage where slime looks for the reward, and the reward into `metadata["raw_reward"]`: use it
    with `--disable-rewards-normalization` whenever sessions have different numbers of traces, since slime then normalises over the
    whole batch instead of the group. A session without a sequence becomes one sample of two `filler_id` tokens that slime
    leaves out of the loss (`remove_sample`), because slime counts rollouts per step; its reward is its own, else `ungraded`, else
    the mean of its group, which leaves the group's mean where it is.
    """
    rows: dict[str, list[Sample]] = {one.session_id: [] for one in group.scored}
    shared = {"group_index": group_index}
    default = mean_reward(sequences) if ungraded is None else ungraded
    for sequence in sequences:
        index = first_index + sequence.index
        rows[sequence.session_id].append(_sample(sequence, reward) | shared | {"index": index, "rollout_id": index})
    for place, one in enumerate(group.scored):
        if not rows[one.session_id]:
            index = first_index + (place if one.spec is None else one.spec.index)
            filler = _filler(one, filler_id, reward, default) | shared | {"index": index, "rollout_id": index}
            rows[one.session_id].append(filler)
    return list(rows.values())


def status_of(sequence: TrainingSequence) -> str:
    """The value of slime's `Sample.Status`: a reply that its length cut is `truncated`, whatever became of the session."""
    if sequence.finish_reason == "length":
        return "truncated"
    return _STATUS.get(sequence.status, "failed")


def _sample(sequence: TrainingSequence, reward: str) -> Sample:
    messages = list(sequence.messages or ())
    first_reply = next((i for i, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))
    metadata: dict[str, Any] = {"polynya": _provenance(sequence)}
    if reward == "advantage":
        metadata["raw_reward"] = sequence.reward
    return {
        "prompt": messages[:first_reply],
        "tokens": [*sequence.prompt_ids.tolist(), *sequence.response_ids.tolist()],
        "response": _last_reply(messages),
        "response_length": len(sequence.response_ids),
        "label": None,
        "reward": sequence.advantage if reward == "advantage" else sequence.reward,
        "loss_mask": sequence.loss_mask.tolist(),
        "weight_versions": [span.version for span in sequence.version_spans],
        "rollout_log_probs": sequence.logprobs.tolist(),
        "remove_sample": False,
        "status": status_of(sequence),
        "metadata": metadata,
        "session_id": sequence.session_id,
        "spec_info": {},
        "prefix_cache_info": {},
    }


def _filler(one: ScoredTrajectory, token: int, reward: str, ungraded: float) -> Sample:
    """What stands for a session that gives nothing to train: slime wants at least one response token."""
    metadata: dict[str, Any] = {"polynya": {"session_id": one.session_id, "error": one.error}}
    raw = ungraded if one.verdict is None else one.verdict
    if reward == "advantage":
        metadata["raw_reward"] = raw
    return {
        "prompt": [],
        "tokens": [token, token],
        "response": "",
        "response_length": 1,
        "label": None,
        "reward": 0.0 if reward == "advantage" else raw,
        "loss_mask": [0],
        "weight_versions": [],
        "rollout_log_probs": [0.0],
        "remove_sample": True,
        "status": _CUT.get(one.status, "failed"),
        "metadata": metadata,
        "session_id": one.session_id,
        "spec_info": {},
        "prefix_cache_info": {},
    }


def _provenance(sequence: TrainingSequence) -> dict[str, Any]:
    return {
        "session_id": sequence.session_id,
        "group_id": sequence.group_id,
        "task_id": sequence.task_id,
        "trajectory_id": sequence.trajectory_id,
        "trace_index": sequence.trace_index,
        "branch": sequence.branch,
        "harness": sequence.harness,
        "weight": sequence.weight,
        "advantage": sequence.advantage,
    }


def _last_reply(messages: Iterable[dict[str, Any]]) -> str:
    """The text of the last assistant message; slime only logs it."""
    replies = [m.get("content") for m in messages if m.get("role") == "assistant"]
    return replies[-1] if replies and isinstance(replies[-1], str) else ""
