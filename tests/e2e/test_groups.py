"""Groups on a whole stack: paused over a restart, stopped early, run again for a trainer that found one stale."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from schemas import ids
from schemas.records import BatchConsumed, GroupEvent, GroupEventType, SkippedGroup, Status
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack of its own: one test pauses it."""
    state_dir: Path = tmp_path_factory.mktemp("groups")
    with Stack(state_dir, engine_url).running() as stack:
        yield stack


async def group(stack: Stack, group_id: str, kind: GroupEventType, within_s: float = 90) -> GroupEvent:
    """A group's fact of this kind, once it is there."""

    async def find() -> GroupEvent | None:
        found = [e for e in await stack.read("rollout.groups") if isinstance(e, GroupEvent) and e.group_id == group_id]
        return next((e for e in found if e.type is kind), None)

    return await once(stack, find, within_s)


async def once(stack: Stack, find: Callable[[], Awaitable[GroupEvent | None]], within_s: float) -> GroupEvent:
    deadline = time.monotonic() + within_s
    while (found := await find()) is None:
        assert time.monotonic() < deadline, stack.logs()
        await asyncio.sleep(0.3)
    return found


async def test_a_pause_survives_a_restart_and_enough_usable_sessions_stop_the_rest(stack: Stack) -> None:
    """Nothing is registered while the fleet is paused; then one session of three is enough, all three end, and one is run again."""
    stack.cli("pause", "--all")
    task = stack.agent_task("turns=0", task_id="early", num_samples=3, min_usable=1)
    # The first that comes makes the directory and is done; the others would run for long.
    task["harness"]["options"]["command"] += f"; mkdir {stack.state_dir / 'first'} 2>/dev/null || sleep 100"
    stack.submit(task)
    group_id = ids.group_id("early")
    await group(stack, group_id, GroupEventType.REGISTERED)
    stack.kill_and_await_restart("processors" if "processors" in stack.info.pids else "orchestrator")
    shown = json.loads(stack.cli("status", "--groups", "--json").stdout)
    assert [g["state"] for g in shown if g["task_id"] == "early"] == ["waiting (paused)"]
    assert "paused: fleet" in stack.cli("status").stdout
    assert await stack.facts("early") == []
    stack.cli("resume", "--all")
    closed = await group(stack, group_id, GroupEventType.CLOSED)
    assert (closed.reason, closed.counts["ended"], closed.counts["usable"]) == ("min_usable", 3, 1)
    results = {r.session_id: r for r in await stack.results("early")}
    assert sorted(r.status for r in results.values()) == [Status.CANCELLED, Status.CANCELLED, Status.COMPLETED]
    async with stack.bus() as bus:
        skipped = [SkippedGroup(group_id=group_id, reason="stale")]
        await bus.publish(BatchConsumed(trainer_id="tr", step=1, skipped=skipped))
    again = ids.requeue_group_id(group_id, "tr")
    (stack.state_dir / "first").rmdir()
    closed = await group(stack, again, GroupEventType.CLOSED)
    assert (closed.requeue_of, closed.for_trainer, closed.generation) == (group_id, "tr", 1)
    specs = [r.spec for r in await stack.results("early") if r.group_id == again]
    assert {(s.requeue_of, s.for_trainer) for s in specs if s is not None} == {(group_id, "tr")}


async def test_a_drained_worker_gets_nothing_more_and_the_queues_budget_ends_the_wait(stack: Stack) -> None:
    """No worker takes it: a time-out of nobody's making, with its result; after `resume` the worker gets sessions again."""
    worker = stack.settings.worker_id
    stack.cli("drain", "--node", worker)
    stack.submit(stack.agent_task("turns=0", task_id="waits", budgets={"queue_s": 2}), wait=True)
    (result,) = await stack.results("waits")
    assert (result.status, result.boundary) == (Status.TIMEOUT, "none")
    assert "queue_s" in result.error
    stack.cli("resume", "--node", worker)
    stack.submit(stack.agent_task("turns=0", task_id="taken"), wait=True)
    assert [r.status for r in await stack.results("taken")] == [Status.COMPLETED]
