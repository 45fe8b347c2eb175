"""NeMo Gym's verify response: the format's fields, contiguous token items, failures that are tried again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from compose.api.reading import trajectory_json
from schemas.records import ScoredTrajectory
from schemas.task import TaskSpec
from tests.trainer_sink.adapters.formats import check
from tests.trainer_sink.hand_made import failed, forked, plain
from trainer_sink.adapters.nemo_gym import main_line, output_items, task_of, verify_response
from trainer_sink.adapters.nemo_gym_agent import PolynyaAgent, aggregate, server
from trainer_sink.client import ApiTrajectory, ApiUnavailableError

ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "Fix it."}], "temperature": 0.5},
    "verifier_metadata": {"answer": 42},
    "reward": 0.25,  # a row that was a result before
}
TEMPLATE = {"harness": {"name": "pi"}, "evaluator": {"name": "command"}, "sampling": {"top_p": 0.9}}

# nemo-gym 0.5.1, nemo_gym/openai_utils.py and base_resources_server.py.
MESSAGE = {"type": str, "id": str, "role": str, "status": str, "content": list[dict[str, Any]]}
FUNCTION_CALL = {"type": str, "call_id": str, "name": str, "arguments": str}
FUNCTION_CALL_OUTPUT = {"type": str, "call_id": str, "output": str}
TOKENS = {"prompt_token_ids": list[int], "generation_token_ids": list[int], "generation_log_probs": list[float]}
RESPONSE = {
    "id": str,
    "created_at": float,
    "model": str,
    "object": str,
    "output": list[dict[str, Any]],
    "parallel_tool_calls": bool,
    "tool_choice": str,
    "tools": list[Any],
    "usage": dict[str, Any],
}
KINDS = {"message": MESSAGE, "function_call": FUNCTION_CALL, "function_call_output": FUNCTION_CALL_OUTPUT}

CALL = {"id": "call-1", "type": "function", "function": {"name": "note", "arguments": '{"text": "x"}'}}
MESSAGES = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "Looking.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call-1", "content": "noted"},
    {"role": "assistant", "content": "Done."},
]


def result(scored: ScoredTrajectory) -> ApiTrajectory:
    """As the API gives it to the client."""
    return ApiTrajectory.of(trajectory_json(scored, "base64"))


def talkative() -> ScoredTrajectory:
    """The forked session with the messages that its two replies belong to."""
    one = forked()
    assert one.trajectory is not None
    traces = [dataclasses.replace(one.trajectory.traces[0], messages=MESSAGES), one.trajectory.traces[1]]
    return dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, traces=traces))


def test_a_session_with_a_tool_call_by_hand() -> None:
    """Replies and results as items; the last item of each reply has its tokens, each prompt holds all tokens before."""
    trace = main_line(result(talkative()).traces)
    assert trace is not None
    items = output_items(trace)
    assert [i["type"] for i in items] == ["message", "function_call", "function_call_output", "message"]
    for item in items:
        check(KINDS[item["type"]] | (TOKENS if "prompt_token_ids" in item else {}), item)
    first, last = items[1], items[3]
    assert (first["name"], first["arguments"], items[2]["output"]) == ("note", '{"text": "x"}', "noted")
    assert (first["prompt_token_ids"], first["generation_token_ids"]) == ([11, 12, 13], [21, 22])
    assert first["generation_log_probs"] == [-0.125, -0.25]
    assert (last["prompt_token_ids"], last["generation_token_ids"]) == ([11, 12, 13, 21, 22, 31, 32], [23, 24])
    assert "prompt_token_ids" not in items[0]
    assert last["content"][0]["text"] == "Done."


def test_the_verify_response() -> None:
    """The row comes back with the response and the reward, and says how much of the session it leaves out."""
    answer = verify_response(ROW, result(talkative()))
    check(RESPONSE, answer["response"])
    assert answer["responses_create_params"] == ROW["responses_create_params"]
    assert (answer["reward"], answer["verifier_metadata"]) == (1.0, {"answer": 42})
    assert (answer["polynya"]["traces"], answer["polynya"]["left_out_traces"]) == (2, 1)
    assert answer["response"]["usage"]["output_tokens"] == 4


def test_a_trace_whose_first_reply_is_trained_elsewhere() -> None:
    """Its ids stand in the next prompt; it carries none itself, or they would be trained twice."""
    one = talkative()
    assert one.trajectory is not None
    branch = dataclasses.replace(one.trajectory.traces[1], messages=MESSAGES, index=0)
    items = output_items(
        result(dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, traces=[branch]))).traces[0]
    )
    assert [("generation_token_ids" in i) for i in items] == [False, False, False, True]
    assert items[3]["prompt_token_ids"] == [11, 12, 13, 21, 22, 33]


def test_the_task_of_a_row() -> None:
    """Template, instruction, sampling; the row's own part wins."""
    task = task_of(ROW, TEMPLATE)
    assert task == TEMPLATE | {
        "instruction": "Fix it.",
        "num_samples": 1,
        "sampling": {"top_p": 0.9, "temperature": 0.5},
    }
    assert TaskSpec.model_validate(task).sampling.temperature == 0.5
    own = task_of(ROW | {"polynya": {"evaluator": {"name": "mine"}, "instruction": "Other."}}, TEMPLATE)
    assert (own["evaluator"], own["instruction"]) == ({"name": "mine"}, "Other.")
    assert task_of({"responses_create_params": {"input": "plain"}}, {})["instruction"] == "plain"
    parts = [
        {"role": "user", "content": [{"type": "input_text", "text": "in "}, {"type": "input_text", "text": "parts"}]}
    ]
    assert task_of({"responses_create_params": {"input": parts}}, {})["instruction"] == "in parts"
    with pytest.raises(ValueError, match="no user message"):
        task_of({"responses_create_params": {"input": []}}, TEMPLATE)


class Fleet:
    """Answers with one result, or with an error; knows what it was asked."""

    def __init__(self, *results: ScoredTrajectory, error: Exception | None = None) -> None:
        self.results, self.error = results, error
        self.tasks: list[Mapping[str, Any]] = []
        self.cancelled: list[str] = []
        self.hang = False

    async def submit(self, task: Mapping[str, Any]) -> str:
        self.tasks.append(task)
        return "task-1"

    async def wait(self, task_id: str, timeout_s: float = 1.0) -> Any:
        if self.hang:
            await asyncio.Event().wait()
        if self.error:
            raise self.error

    async def get_trajectories(self, task_id: str) -> list[ApiTrajectory]:
        return [result(r) for r in self.results]

    async def cancel(self, task_id: str, reason: str | None = None) -> int:
        self.cancelled.append(task_id)
        return 1


async def test_the_server_runs_a_row() -> None:
    """`/run` submits the row's task and answers with its result; `/aggregate_metrics` sums up."""
    fleet = Fleet(talkative())
    transport = httpx.ASGITransport(server(PolynyaAgent(fleet, TEMPLATE)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gym") as http:
        answer = (await http.post("/run", json=ROW)).json()
        assert answer["reward"] == 1.0
        assert fleet.tasks[0]["instruction"] == "Fix it."
        metrics = (await http.post("/aggregate_metrics", json={"verify_responses": [answer, {"reward": 0.0}]})).json()
        assert metrics["agent_metrics"] == {"mean/reward": 0.5, "rollouts": 2, "failed": 0}
        assert (await http.post("/v1/responses", json={})).status_code == 501
        assert (await http.post("/run", json={})).status_code == 422


@pytest.mark.parametrize(
    ("fleet", "error"),
    [
        (Fleet(failed()), "ended failed: exit 1"),
        (Fleet(), "has 0 results instead of one"),
        (Fleet(dataclasses.replace(plain(), reward=None)), "no reward"),
        (Fleet(error=ApiUnavailableError("the API is away", hint="start it")), "the API is away"),
    ],
)
async def test_what_goes_wrong_is_a_failed_row(fleet: Fleet, error: str) -> None:
    """Reward 0 under NeMo Gym's mark, with the reason; never an error of the server."""
    answer = await PolynyaAgent(fleet, TEMPLATE).run(ROW)
    check(RESPONSE, answer["response"])
    assert (answer["reward"], answer["_ng_failure_class"]) == (0.0, "polynya_error")
    assert error in answer["error"]
    assert aggregate([answer])["agent_metrics"]["failed"] == 1


async def test_a_cancelled_run_cancels_its_task() -> None:
    """Nobody waits for it any more, so the fleet needn't finish it."""
    fleet = Fleet(plain())
    fleet.hang = True
    running = asyncio.ensure_future(PolynyaAgent(fleet, TEMPLATE).run(ROW))
    while not fleet.tasks:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert fleet.cancelled == ["task-1"]


async def test_rows_wait_for_a_place() -> None:
    """One place: the second row is submitted when the first one is over, however that ended."""
    fleet = Fleet(talkative())
    fleet.hang = True
    agent = PolynyaAgent(fleet, TEMPLATE, concurrency=1)
    first, second = (asyncio.ensure_future(agent.run(ROW)) for _ in range(2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(fleet.tasks) == 1
    fleet.hang = False
    first.cancel()
    async with asyncio.timeout(10):
        assert (await second)["reward"] == 1.0
    assert len(fleet.tasks) == 2
    assert first.cancelled()


def test_metrics_by_task() -> None:
    """Rows that say their index are averaged by task, too."""
    rows = [{"_ng_task_index": i, "reward": r} for i, r in ((0, 1.0), (0, 0.0), (1, 1.0))]
    assert aggregate(rows)["group_level_metrics"] == [
        {"_ng_task_index": 0, "mean/reward": 0.5},
        {"_ng_task_index": 1, "mean/reward": 1.0},
    ]
    assert aggregate([])["key_metrics"] == {"mean/reward": 0.0}
