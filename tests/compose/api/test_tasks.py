"""Tasks over HTTP: submitted durably and once, followed, cancelled, and what came of them."""

from __future__ import annotations

import asyncio
import base64
import json

import numpy as np
import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.arrays import unpack_ids, unpack_logprobs, unpack_mask
from schemas.records import Control, ControlAction, ScoredTrajectory, Status, TaskRequest
from tests.compose.api import facts
from tests.compose.api.conftest import serving, settled
from tests.trainer_sink.scored import trace


def published(bus: MemoryBus, topic: str = "rollout.tasks") -> list[object]:
    """The records of a topic."""
    return [d.decode() for d in bus.records(topic)]


async def test_an_accepted_task_stands_on_the_log(client, memory_bus, task):
    """202 means that the command is there, whole, under its id."""
    answer = await client.post("/api/tasks", json=task(task_id="t-1", num_samples=4, metadata={"set": "a"}))
    assert answer.status_code == 202
    (request,) = published(memory_bus)
    assert isinstance(request, TaskRequest)
    assert (request.task_id, request.num_samples, request.spec["metadata"]) == ("t-1", 4, {"set": "a"})
    assert answer.json() == {
        "task_id": "t-1",
        "group_id": ids.group_id("t-1"),
        "policy_id": "default",
        "num_samples": 4,
        "submitted_at": request.submitted_at,
    }


async def test_the_same_task_again_is_the_same_task(client, memory_bus, task):
    """A repetition gets the first one's answer and publishes nothing."""
    first = await client.post("/api/tasks", json=task(task_id="t-1"))
    again = await client.post("/api/tasks", json=task(task_id="t-1", num_samples=1))
    assert (again.status_code, again.json()) == (202, first.json())
    assert len(published(memory_bus)) == 1


async def test_another_task_under_a_taken_id_is_refused(client, memory_bus, task):
    """409, and nothing is published."""
    await client.post("/api/tasks", json=task(task_id="t-1"))
    other = await client.post("/api/tasks", json=task(task_id="t-1", instruction="something else"))
    assert other.status_code == 409
    assert "t-1" in other.json()["detail"]
    assert len(published(memory_bus)) == 1


async def test_of_two_that_meet_the_logs_first_one_counts(memory_bus, task):
    """Two APIs take different tasks under one id at the same moment: one is accepted, the other told so."""
    async with serving(memory_bus) as one, serving(memory_bus) as two:
        answers = await asyncio.gather(
            one.post("/api/tasks", json=task(task_id="t-1", instruction="a")),
            two.post("/api/tasks", json=task(task_id="t-1", instruction="b")),
        )
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [202, 409]
        first = published(memory_bus)[0]
        assert isinstance(first, TaskRequest)
        winner = next(a for a in answers if a.status_code == 202)
        assert (first.instruction == "a") == (winner is answers[0])


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"instructin": "x"}, "instructin"),
        ({"harness": {"name": "shell", "optons": {}}}, "harness.optons"),
        ({"prepare": [{"exec": "a"}, {"exek": "b"}]}, "prepare[1].exek"),
        ({"budgets": {"run_s": -1}}, "budgets.run_s"),
        ({"harness": {"name": "nobody"}}, "harness.name"),
        ({"evaluator": {"name": "nobody"}}, "evaluator.name"),
        ({"evaluator": {"name": "command", "options": {"comand": "x"}}}, "evaluator.options.comand"),
        ({"runtime": {"kind": "docker"}}, "runtime.image"),
        ({"evaluator": {"runtime": {"kind": "docker"}}}, "evaluator.runtime.image"),
        ({"task_id": "a/b"}, "task_id"),
        ({"callback_url": "http://10.0.0.1/x"}, "callback_url"),
    ],
)
async def test_what_is_wrong_is_named_by_its_path(client, memory_bus, task, change, path):
    """422, with the field's path and what is wrong; nothing is published."""
    answer = await client.post("/api/tasks", json=task(**change))
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert path in [error["path"] for error in answer.json()["errors"]]
    assert published(memory_bus) == []


async def test_a_batch_is_taken_whole_or_not_at_all(client, memory_bus, task):
    """One bad line among good ones: the line is named, nothing is published."""
    good, bad = json.dumps(task()), json.dumps(task(num_samples=0))
    lines = {"content-type": "application/x-ndjson"}
    refused = await client.post("/api/tasks/batch", content=f"{good}\n\n{bad}\n", headers=lines)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["path"] == "line 3: num_samples"
    assert published(memory_bus) == []
    taken = await client.post("/api/tasks/batch", content=f"{good}\n{good}\n", headers=lines)
    assert taken.status_code == 202
    assert {t["task_id"] for t in taken.json()["tasks"]} == {r.task_id for r in published(memory_bus)}
    listed = await client.post("/api/tasks/batch", json=[task(task_id="a"), task(task_id="b")])
    assert [t["task_id"] for t in listed.json()["tasks"]] == ["a", "b"]


async def test_a_batch_with_one_id_for_two_tasks_is_refused(client, memory_bus, task):
    """Which of them would be meant?"""
    answer = await client.post("/api/tasks/batch", json=[task(task_id="a"), task(task_id="a", instruction="other")])
    assert answer.status_code == 422
    assert published(memory_bus) == []


async def test_odd_json_is_kept_or_refused_but_never_a_fault(client, memory_bus, task):
    """Lone surrogates and very large numbers in open fields come through; texts that are none are refused."""
    body = json.dumps(task(task_id="odd", metadata={"s": "\ud800", "n": 2**70}))
    assert (
        await client.post("/api/tasks", content=body, headers={"content-type": "application/json"})
    ).status_code == 202
    (request,) = published(memory_bus)
    assert request.spec["metadata"] == {"s": "\ud800", "n": 2**70}
    lone = json.dumps(task(instruction="\ud800"))
    assert (
        await client.post("/api/tasks", content=lone, headers={"content-type": "application/json"})
    ).status_code == 422


async def test_a_task_is_followed_from_its_acceptance_to_its_end(client, memory_bus, task):
    """Accepted → running → ended, with its groups, sessions and rewards."""
    await client.post("/api/tasks", json=task(task_id="t-1", num_samples=2))
    assert (await client.get("/api/tasks/t-1")).json()["status"] == "accepted"
    await facts.registered(memory_bus, "t-1", 2)
    await facts.ran(memory_bus, "t-1", 0)
    await facts.told(memory_bus, "t-1", 0, 2, reward=1.0)
    await settled(client)
    running = (await client.get("/api/tasks/t-1")).json()
    assert (running["status"], running["scored"], running["stages"]) == ("running", 1, {"ended": 1, "queued": 1})
    waiting = asyncio.create_task(client.get("/api/tasks/t-1", params={"wait_s": 20}))
    await asyncio.sleep(0)
    assert not waiting.done()
    await facts.told(memory_bus, "t-1", 1, 2, reward=0.0, status=Status.FAILED)
    ended = (await waiting).json()
    assert (ended["status"], ended["scored"], ended["mean_reward"]) == ("ended", 2, 0.5)
    (group,) = ended["groups"]
    assert [s["index"] for s in group["sessions"]] == [0, 1]
    assert [s["status"] for s in group["sessions"]] == ["completed", "failed"]
    assert [s["reward"] for s in group["sessions"]] == [1.0, 0.0]


async def test_trajectories_come_with_their_tokens_page_by_page(client, memory_bus):
    """Ids, mask and logprobs as lists or as bytes; the pages together are all of them, in order."""
    results = await facts.lived(memory_bus, "t-1", 5, traces=[trace(0), trace(1, response=[7, 8])])
    await settled(client)
    seen, after = [], -1
    while after is not None:
        page = (await client.get("/api/tasks/t-1/trajectories", params={"limit": 2, "after": after})).json()
        assert page["is_ended"]
        seen += page["trajectories"]
        after = page["next"]
    assert [t["session_id"] for t in seen] == [r.session_id for r in results]
    first = seen[0]["traces"][0]
    assert first["prompt_ids"] == [1, 2]
    assert first["response_ids"] == [3, 4, 5]
    assert first["loss_mask"] == [1, 1, 0]
    assert first["logprobs"] == [-0.5, -0.5, 0.0]
    assert first["messages"] == [{"role": "user", "content": "hi \ud800"}]
    packed = (await client.get("/api/tasks/t-1/trajectories", params={"arrays": "base64"})).json()
    second = packed["trajectories"][4]["traces"][1]
    assert np.array_equal(unpack_ids(base64.b64decode(second["response_ids"])), [7, 8])
    assert np.array_equal(unpack_mask(base64.b64decode(second["loss_mask"])), [1, 0])
    assert np.array_equal(unpack_logprobs(base64.b64decode(second["logprobs"])), np.float32([-0.5, 0.0]))


async def test_a_page_ends_at_its_size(memory_bus):
    """However many are asked for, a page has few bytes, but never none."""
    await facts.lived(memory_bus, "t-1", 3, traces=[trace(0, response=range(20_000))])
    async with serving(memory_bus, page_bytes=100_000) as client:
        sizes, after = [], -1
        while after is not None:
            page = (await client.get("/api/tasks/t-1/trajectories", params={"limit": 64, "after": after})).json()
            sizes.append(len(page["trajectories"]))
            after = page["next"]
    assert sizes == [1, 1, 1]


async def test_large_trajectories_are_read_through_their_claim_checks(client, memory_bus):
    """A result that travels as a blob is whole in the answer; the view needs only its headers."""
    await facts.lived(memory_bus, "t-1", 1, traces=[trace(0, response=range(200_000))])
    await settled(client)
    page = (await client.get("/api/tasks/t-1/trajectories")).json()
    assert len(page["trajectories"][0]["traces"][0]["response_ids"]) == 200_000


async def test_a_revision_replaces_a_result(client, memory_bus):
    """The newest revision is shown; a late repetition of an older one changes nothing."""
    await facts.lived(memory_bus, "t-1", 1, reward=0.0)
    await facts.told(memory_bus, "t-1", 0, 1, revision=2, reward=1.0)
    await facts.told(memory_bus, "t-1", 0, 1, revision=1, reward=0.0)
    await settled(client)
    (result,) = (await client.get("/api/tasks/t-1/results")).json()["results"]
    assert (result["revision"], result["reward"], result["rewards"][0]["grader"]) == (2, 1.0, "command")
    assert result["counts"]["calls"] == 1


async def test_cancelling_asks_the_fleet(client, memory_bus, task):
    """A control for the task, with its reason; a task that ended is left in peace, an unknown one is 404."""
    await client.post("/api/tasks", json=task(task_id="t-1", num_samples=3))
    asked = await client.post("/api/tasks/t-1/cancel", json={"reason": "enough"})
    assert (asked.status_code, asked.json()) == (202, {"target": "t-1", "sessions": 3})
    (control,) = published(memory_bus, "rollout.control")
    assert isinstance(control, Control)
    assert (control.action, control.target_kind, control.reason) == (ControlAction.CANCEL, "task", "enough")
    await facts.lived(memory_bus, "t-2", 1)
    await settled(client)
    assert (await client.post("/api/tasks/t-2/cancel")).json()["sessions"] == 0
    assert len(published(memory_bus, "rollout.control")) == 1
    assert (await client.post("/api/tasks/nobody/cancel")).status_code == 404


async def test_a_restart_loses_nothing(memory_bus, task):
    """A second process, started later, answers as the first one did."""
    async with serving(memory_bus) as client:
        await client.post("/api/tasks", json=task(task_id="t-1", num_samples=2))
        await facts.lived(memory_bus, "t-1", 2)
        await settled(client)
        before = [(await client.get(path)).json() for path in ("/api/tasks/t-1", "/api/tasks/t-1/trajectories")]
    async with serving(memory_bus) as client:
        after = [(await client.get(path)).json() for path in ("/api/tasks/t-1", "/api/tasks/t-1/trajectories")]
        assert after == before
        assert (await client.post("/api/tasks", json=task(task_id="t-1", num_samples=2))).status_code == 202
    assert len(published(memory_bus)) == 1


async def test_memory_is_bounded(memory_bus, task):
    """The tasks that ended longest ago are forgotten, but their ids stay theirs, and those that run stay known."""
    await facts.registered(memory_bus, "runs", 1)
    async with serving(memory_bus, max_sessions=4) as client:
        await client.post("/api/tasks", json=task(task_id="old"))
        for name in ("old", "b", "c", "d", "e"):
            await facts.lived(memory_bus, name, 1)
        await settled(client)
        health = (await client.get("/api/health")).json()
        assert health["sessions"] <= 4
        assert health["evicted"] >= 2
        gone = await client.get("/api/tasks/old")
        assert gone.status_code == 404
        assert "forgotten" in gone.json()["hint"]
        assert (await client.get("/api/tasks/runs")).status_code == 200
        assert (await client.post("/api/tasks", json=task(task_id="old"))).status_code == 202
        assert (await client.post("/api/tasks", json=task(task_id="old", instruction="no"))).status_code == 409
    assert sum(isinstance(r, TaskRequest) for r in published(memory_bus)) == 1


async def test_results_of_a_release_with_fewer_headers_are_read_too(memory_bus):
    """Where the headers don't say it, the record does."""
    result = (await facts.lived(memory_bus, "t-1", 1))[0]
    assert isinstance(result, ScoredTrajectory)
    async with MemoryBus(partitions=3) as older:
        await facts.registered(older, "t-1", 1)
        (delivery,) = memory_bus.records("trajectory.scored")
        bare = [(name, value) for name, value in delivery.header_list if name.startswith("ce_")]
        await older.publish_raw(delivery.topic, delivery.key, delivery.value, bare)
        async with serving(older) as client:
            state = (await client.get("/api/tasks/t-1")).json()
    assert (state["status"], state["mean_reward"]) == ("ended", 1.0)


async def test_poison_on_the_log_is_counted_and_passed_over(memory_bus):
    """A view goes on; who consumes the topic sets the record aside."""
    await memory_bus.publish_raw("rollout.sessions", b"x", b"\x00\x00\x00\x00\x03torn", [])
    await facts.lived(memory_bus, "t-1", 1)
    async with serving(memory_bus) as client:
        assert (await client.get("/api/tasks/t-1")).json()["status"] == "ended"
        assert (await client.get("/api/health")).json()["unreadable"] == 1
