"""POSTRUN on a real worker: fresh runtimes, artifacts, and evaluators that look at the trajectory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.records import Boundary, SessionEventType, Stage, Status, Trace, Trajectory
from stage_workers.evaluators import references_in
from tests.stage_workers.world import World, task, world


@pytest.fixture
async def around(memory_bus: MemoryBus, tmp_path: Path):
    async with world(memory_bus, tmp_path / "state") as made:
        yield made


def runtimes_of(around: World) -> list[str]:
    return sorted(path.name for path in (around.settings.state_dir / "runtimes").iterdir())


async def artifact(around: World, details: Any, name: str) -> bytes:
    return await around.bus.blobs.get(references_in(details)[name].url)


async def test_a_fresh_runtime_is_prepared_while_the_agent_runs(around: World, tmp_path: Path) -> None:
    """The agent here doesn't end before the evaluator's runtime is there; the grading sees that one, and only it."""
    sign = tmp_path / "prepared"
    spec = task(
        f"touch left; until test -e {sign}; do sleep 0.05; done",
        eval_prepare=[{"exec": f"echo mine > mine.txt; touch {sign}"}],
        evaluator={"name": "command", "fresh": True, "options": {"command": "test -f mine.txt && ! test -e left"}},
    )
    graded = await around.to_graded("s1", spec)
    assert (graded.status, graded.boundary, graded.error) == (Status.COMPLETED, Boundary.NONE, "")
    assert [reward.value for reward in around.rewards()] == [1.0]
    await around.let_go("s1")
    assert runtimes_of(around) == []


async def test_a_run_that_is_taken_away_leaves_no_fresh_runtime(around: World) -> None:
    """A lost lease: both places go, though the second one was never used."""
    spec = task("sleep 60", evaluator={"name": "command", "fresh": True, "options": {"command": "true"}})
    await around.to_running("s1", spec)
    assert any(name.endswith(".eval") for name in runtimes_of(around))
    await around.fact(SessionEventType.LEASE_EXPIRED, "s1", attempt=1)
    await around.let_go("s1")
    assert runtimes_of(around) == []


async def test_a_fresh_runtime_that_fails_is_no_bad_grade(around: World) -> None:
    """Its steps belong to the grading: boundary evaluator, no reward."""
    spec = task(
        "true",
        eval_prepare=[{"exec": "echo no disk >&2; exit 4"}],
        evaluator={"name": "command", "fresh": True, "options": {"command": "true"}},
    )
    graded = await around.to_graded("s1", spec)
    assert (graded.status, graded.boundary, graded.expects_reward) == (Status.FAILED, Boundary.EVALUATOR, False)
    assert "eval_prepare[0] exited with 4: no disk" in graded.error


async def test_what_is_kept(around: World) -> None:
    """The harness' output and the evaluator's artifacts stand in `graded` with a date, the lease's secret in none of them."""
    evaluator = {"name": "test_on_output", "options": {"command": "echo PASSED a::b", "expected": {"a::b": "PASSED"}}}
    graded = await around.to_graded("s1", task('echo "key $OPENAI_API_KEY"', evaluator=evaluator))
    kept = references_in(graded.details)
    assert set(kept) == {"harness.stdout.log", "test_output.log"}
    assert await artifact(around, graded.details, "harness.stdout.log") == b"key [secret]\n"
    assert await artifact(around, graded.details, "test_output.log") == b"PASSED a::b\n"
    days_left = (kept["test_output.log"].kept_until - graded.at) / 86_400_000
    assert 13.9 < days_left <= 14.0
    (reward,) = around.rewards()
    assert references_in(reward.details) == kept
    assert graded.details["evaluate_ms"] >= 0


async def test_artifacts_of_a_grading_that_fails(around: World) -> None:
    """What was printed is what one wants to see then."""
    evaluator = {"name": "command", "options": {"command": "echo many", "score": "printed"}}
    graded = await around.to_graded("s1", task("echo hello", evaluator=evaluator))
    assert graded.boundary is Boundary.EVALUATOR
    assert await artifact(around, graded.details, "harness.stdout.log") == b"hello\n"
    assert await artifact(around, graded.details, "evaluator.log") == b"many\n"


async def test_an_evaluator_that_waits_for_the_trajectory(around: World) -> None:
    """It is graded once the lease's trajectory is on the log; those of other sessions and leases don't count."""
    evaluator = {"name": "trajectory", "options": {"function": "tests.stage_workers.evaluators.grading:each"}}
    spec = task("true", evaluator=evaluator)
    await around.to_sealed("s1", spec)
    await around.command(Stage.POSTRUN, "s1", spec)
    await around.until(lambda: any(held.stage is Stage.POSTRUN for beat in around.beats()[-1:] for held in beat.holds))
    lease = ids.lease_id("s1", 1)
    traces = [Trace(index=3), Trace(index=5)]
    for session, lease_id in (("s2", lease), ("s1", "another"), ("s1", lease)):
        await around.bus.publish(
            Trajectory(session_id=session, lease_id=lease_id, traces=traces[: 1 + (lease_id == lease)])
        )
    graded = await around.heard(SessionEventType.GRADED, "s1")
    assert graded.error == ""
    (reward,) = around.rewards()
    assert (reward.value, reward.trace_rewards) == (4.0, [3.0, 5.0])


async def test_no_trajectory_within_the_budget(around: World) -> None:
    """The wait ends with the evaluator's budget."""
    evaluator = {"name": "trajectory", "options": {"function": "tests.stage_workers.evaluators.grading:each"}}
    graded = await around.to_graded("s1", task("true", evaluator=evaluator, budgets={"evaluate_s": 0.3}))
    assert (graded.status, graded.boundary) == (Status.TIMEOUT, Boundary.EVALUATOR)


async def test_an_evaluator_that_is_not_here_fails_init(around: World) -> None:
    """Before the run, not after it."""
    await around.command(Stage.INIT, "s1", task("true", evaluator={"name": "nobody.knows:It"}))
    failed = await around.heard(SessionEventType.INIT_FAILED, "s1")
    assert failed.boundary is Boundary.EVALUATOR
    assert "can't be imported here" in failed.error
    await asyncio.wait_for(around.let_go("s1"), 20)
