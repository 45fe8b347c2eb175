"""Sessions that don't go well still end in one terminal event and one scored trajectory, so that their group completes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.records import Boundary, Control, ControlAction, ScoredTrajectory, SessionEventType, Status
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack whose leases expire quickly."""
    state_dir: Path = tmp_path_factory.mktemp("endings")
    with Stack(
        state_dir,
        engine_url,
        env={"POLYNYA_LEASE_TTL_S": "4", "POLYNYA_HEARTBEAT_S": "0.5", "POLYNYA_SEAL_GRACE_S": "6"},
    ).running() as stack:
        yield stack


async def ended(stack: Stack, task_id: str, within_s: float = 90) -> ScoredTrajectory:
    """The one scored trajectory of a task's one session, once it is there; its terminal event is the only one."""
    deadline = time.monotonic() + within_s
    while not (results := await stack.results(task_id)):
        assert time.monotonic() < deadline, stack.logs()
        await asyncio.sleep(0.3)
    facts = [e for e in await stack.facts(task_id) if e.type is SessionEventType.ENDED]
    assert len({e.event_id for e in facts}) == 1
    assert len({(r.trajectory_id, r.revision) for r in results}) == 1
    assert (facts[0].status, facts[0].boundary) == (results[0].status, results[0].boundary)
    return results[0]


async def running(stack: Stack, task_id: str, kind: SessionEventType = SessionEventType.STARTED) -> None:
    """Wait until a task's session has got so far."""
    deadline = time.monotonic() + 60
    while kind not in [e.type for e in await stack.facts(task_id)]:
        assert time.monotonic() < deadline, stack.logs()
        await asyncio.sleep(0.2)


async def test_a_session_whose_init_fails_ends_failed_in_the_sandbox(stack: Stack) -> None:
    """Every attempt's prepare step fails; the scored trajectory has no traces and names the boundary."""
    task = stack.agent_task(
        "turns=1", task_id="no-init", prepare=[{"exec": "echo no space >&2; exit 7"}], max_attempts=2
    )
    stack.submit(task)
    result = await ended(stack, "no-init")
    assert (result.status, result.boundary) == (Status.FAILED, Boundary.SANDBOX)
    assert result.trajectory is None or result.trajectory.traces == []
    assert "7" in result.error
    attempts = {e.attempt for e in await stack.facts("no-init") if e.type is SessionEventType.INIT_FAILED}
    assert attempts == {1, 2}


async def test_a_harness_that_fails_keeps_its_partial_trajectory(stack: Stack) -> None:
    """A non-zero exit is the harness' failure; what it sampled before is delivered."""
    task = stack.agent_task("turns=1", task_id="bad-exit")
    task["harness"]["options"]["command"] += "; exit 3"
    stack.submit(task)
    result = await ended(stack, "bad-exit")
    assert (result.status, result.boundary) == (Status.FAILED, Boundary.HARNESS)
    assert result.trajectory is not None
    assert result.trajectory.counts.trained == 2


async def test_a_run_that_takes_too_long_is_a_timeout_with_its_trajectory(stack: Stack) -> None:
    """The deadline kills the harness, but seals, builds, grades and delivers what there is."""
    task = stack.agent_task("turns=1", task_id="slow", budgets={"run_s": 4})
    task["harness"]["options"]["command"] += "; sleep 60"
    stack.submit(task)
    result = await ended(stack, "slow")
    assert result.status is Status.TIMEOUT
    assert result.trajectory is not None
    assert result.trajectory.counts.trained == 2


@pytest.mark.parametrize(
    ("name", "fields", "end", "trained"),
    [
        ("init", {"prepare": [{"exec": "sleep 30"}], "budgets": {"init_s": 1}}, (Status.TIMEOUT, Boundary.SANDBOX), 0),
        (
            "post",
            {"post_run": [{"exec": "sleep 30"}], "budgets": {"postrun_s": 1}},
            (Status.FAILED, Boundary.SANDBOX),
            2,
        ),
        (
            "grade",
            {"evaluator": {"name": "command", "options": {"command": "sleep 30"}}, "budgets": {"evaluate_s": 1}},
            (Status.FAILED, Boundary.EVALUATOR),
            2,
        ),
    ],
    ids=["init", "postrun", "evaluate"],
)
async def test_each_budget_ends_its_own_stage(
    stack: Stack, name: str, fields: dict[str, object], end: tuple[Status, Boundary], trained: int
) -> None:
    """What ran before the budget passed is delivered; the boundary is that of the stage, and the text names the budget."""
    task_id = f"budget-{name}"
    stack.submit(stack.agent_task("turns=1", task_id=task_id, max_attempts=1, **fields))
    result = await ended(stack, task_id)
    assert (result.status, result.boundary) == end
    assert "budgets." in result.error
    assert result.reward is None
    assert (result.trajectory.counts.trained if result.trajectory is not None else 0) == trained


async def test_a_cancelled_session_ends_cancelled(stack: Stack) -> None:
    """A cancel that arrives during the run kills the harness and ends the session once."""
    task = stack.agent_task("turns=1", task_id="cancelled")
    task["harness"]["options"]["command"] += "; sleep 100"
    stack.submit(task)
    await running(stack, "cancelled")
    session_id = (await stack.facts("cancelled"))[0].session_id
    async with stack.bus() as bus:
        await bus.publish(Control(control_id="c1", target=session_id, action=ControlAction.CANCEL, reason="test", at=1))
    result = await ended(stack, "cancelled")
    assert result.status is Status.CANCELLED


async def test_a_session_whose_worker_dies_gets_attempt_2_and_nothing_of_attempt_1(stack: Stack) -> None:
    """The killed worker's calls stay on the log and are counted, but only attempt 2 is trained."""
    task = stack.agent_task("turns=4 delay_ms=20", task_id="twice", max_attempts=2)
    stack.submit(task)
    await running(stack, "twice")
    stack.until(lambda: len(stack.journal()) > 0, 30, "a first answer")
    os.kill(stack.info.pids["worker"], signal.SIGKILL)
    result = await ended(stack, "twice", 120)
    assert (result.status, result.attempt) == (Status.COMPLETED, 2)
    assert result.trajectory is not None
    trained = [c for c in result.trajectory.calls if c.disposition == "trained"]
    assert {c.lease_id for c in trained} == {result.lease_id}
    assert len(trained) == 5
    leases = {e.lease_id for e in await stack.facts("twice") if e.type is SessionEventType.GRANTED}
    assert len(leases) == 2


async def test_a_session_whose_worker_dies_without_an_attempt_left_ends_failed(stack: Stack) -> None:
    """One attempt only: the session fails in the sandbox, with the calls made so far as its partial trajectory."""
    task = stack.agent_task("turns=4 delay_ms=20", task_id="once", max_attempts=1)
    stack.submit(task)
    await running(stack, "once")
    os.kill(stack.info.pids["worker"], signal.SIGKILL)
    result = await ended(stack, "once", 120)
    assert (result.status, result.boundary) == (Status.FAILED, Boundary.SANDBOX)


async def test_a_worker_frozen_past_its_lease_contributes_nothing(stack: Stack) -> None:
    """SIGSTOP until the lease has expired, then SIGCONT: the zombie kills its harness and tells no end; attempt 2 alone counts."""
    task = stack.agent_task("turns=30 delay_ms=10", task_id="zombie", max_attempts=2)
    stack.submit(task)
    await running(stack, "zombie")
    stack.until(lambda: len(stack.journal()) > 0, 30, "a first answer")
    pid = stack.kill("worker", signal.SIGSTOP)
    try:
        await running(stack, "zombie", SessionEventType.LEASE_EXPIRED)
    finally:
        os.kill(pid, signal.SIGCONT)
    result = await ended(stack, "zombie", 150)
    assert (result.status, result.attempt) == (Status.COMPLETED, 2)
    assert result.trajectory is not None
    assert {c.lease_id for c in result.trajectory.calls if c.disposition == "trained"} == {result.lease_id}
    facts = await stack.facts("zombie")
    expired = next(i for i, e in enumerate(facts) if e.type is SessionEventType.LEASE_EXPIRED)
    late = [
        e for e in facts[expired:] if e.attempt == 1 and e.worker_id and e.type is not SessionEventType.LEASE_EXPIRED
    ]
    assert [e.type for e in late if e.type in {SessionEventType.FINISHED, SessionEventType.GRADED}] == []
    rewards = [r for r in await stack.read("reward.assigned") if getattr(r, "session_id", "") == result.session_id]
    assert {getattr(r, "lease_id", "") for r in rewards} <= {result.lease_id}
