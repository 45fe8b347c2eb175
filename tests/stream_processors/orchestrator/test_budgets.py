"""Every kind of time-out, from the timer's fact to the session's one end: its status, its boundary, and what it still delivers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.records import Boundary, Control, ControlAction, SessionEvent, Stage, StageCommand, Status
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.core import apply
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.outputs import outputs
from stream_processors.orchestrator.row import SessionRow
from stream_processors.orchestrator.tick import Limits, Seen, tick
from tests.stream_processors.orchestrator.facts import external, fact, good_life, lease, play, registered, row_in

LIMITS = Limits(lease_ttl_ms=15_000, seal_grace_ms=30_000, end_grace_ms=20_000, command_grace_ms=15_000)
BLIND = FleetView()


def pass_time(row: SessionRow, ms: int, controls: Controls | None = None) -> tuple[SessionRow, list[SessionEvent]]:
    """The row after what the timer says so much later than the last stage began, and the facts that this causes."""
    now = row.since_at + ms
    said = [f for f in tick(Seen([row], BLIND, LIMITS, now, controls or Controls())) if f.type is not Fact.SEAL_OVERDUE]
    caused: list[SessionEvent] = []
    for n, one in enumerate(said, row.version + 1):
        after = apply(row, one, n, now)
        assert after is not None
        if after is not row:
            row = after
            caused += [r for r in outputs(row, one, registered()) if isinstance(r, SessionEvent)]
    return row, caused


@pytest.mark.parametrize(
    ("stage", "after_s", "status", "boundary", "budget"),
    [
        (Stage.QUEUED, 100, Status.TIMEOUT, Boundary.NONE, "queue_s"),
        (Stage.INIT, 20 + 20, Status.TIMEOUT, Boundary.SANDBOX, "init_s"),
        (Stage.READY, 100 + 20, Status.TIMEOUT, Boundary.SANDBOX, "didn't start"),
        (Stage.POSTRUN, 10 + 300 + 20, Status.FAILED, Boundary.EVALUATOR, "budgets"),
    ],
    ids=str,
)
def test_a_stage_that_outlasts_its_budget_ends_the_last_attempt(
    stage: Stage, after_s: int, status: Status, boundary: Boundary, budget: str
) -> None:
    """Not a moment before; the end says which budget it was, and expects a trajectory where a lease was granted."""
    row = row_in(stage, attempts=1)
    assert pass_time(row, after_s * 1000 - 1)[1] == []
    row, caused = pass_time(row, after_s * 1000)
    (ended,) = [f for f in caused if f.type is Fact.ENDED]
    assert (ended.status, ended.boundary) == (status, boundary)
    assert budget in ended.error
    assert ended.expects_trajectory == (stage in (Stage.READY, Stage.POSTRUN))
    assert not ended.expects_reward


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.READY])
def test_with_an_attempt_left_the_session_waits_again(stage: Stage) -> None:
    """What never ran may be tried once more, with a queue budget of its own."""
    row, caused = pass_time(row_in(stage), 10**6)
    assert (row.stage, row.attempt, row.queued_at) == (Stage.QUEUED, 2, row.moved_at)
    assert not [f for f in caused if f.type is Fact.ENDED]


def test_a_run_that_outlasts_its_budget_is_asked_to_seal_and_graded() -> None:
    """The worker kills and seals; the partial run is graded, and its end is the run's time-out with the reward that it got."""
    row, _ = pass_time(row_in(Stage.RUNNING, attempts=1), 70_000)
    assert (row.stage, row.ending) == (Stage.RUNNING, Status.TIMEOUT)
    held = {"attempt": 1, "round": 1, "lease_id": lease(), "worker_id": "w1", "incarnation": "i1"}
    row = play(
        fact(Fact.FINISHED, status="timeout", boundary="harness", **held),
        fact(Fact.SEALED, writers=[1], **held),
        row=row,
    )
    assert row.stage is Stage.POSTRUN
    row = play(fact(Fact.GRADED, status="completed", rewards=["reward"], expects_reward=True, **held), row=row)
    assert (row.stage, row.status, row.boundary) == (Stage.ENDED, Status.TIMEOUT, Boundary.HARNESS)
    assert row.expects_reward


def test_a_worker_that_does_not_seal_in_time_is_sealed_for() -> None:
    """The end is still the time-out of the run, with what was captured."""
    row, _ = pass_time(row_in(Stage.RUNNING, attempts=1), 70_000)
    row, caused = pass_time(row, 70_000 + 20_000)
    assert [f.type for f in caused] == [Fact.SEALED, Fact.ENDED]
    assert (row.status, row.boundary) == (Status.TIMEOUT, Boundary.HARNESS)
    assert caused[-1].expects_trajectory


@pytest.mark.parametrize(
    ("boundary", "told"), [("sandbox", "post_run took longer"), ("evaluator", "the evaluator took longer")]
)
def test_grading_that_a_worker_reports_late_is_no_time_out_of_the_session(boundary: str, told: str) -> None:
    """`postrun_s` and `evaluate_s` have passed there: a good run has failed where it was graded, and is delivered."""
    graded = fact(
        Fact.GRADED,
        status="timeout",
        boundary=boundary,
        error=told,
        attempt=1,
        round=1,
        lease_id=lease(),
        worker_id="w1",
        incarnation="i1",
    )
    row = play(graded, row=row_in(Stage.POSTRUN))
    assert (row.status, row.boundary, row.error) == (Status.FAILED, boundary, told)
    assert not row.expects_reward


def test_an_init_that_a_worker_gives_up_in_time_is_the_same_time_out() -> None:
    """Whoever keeps the budget, the session's end looks alike."""
    told = fact(
        Fact.INIT_FAILED,
        status="timeout",
        boundary="sandbox",
        error="INIT took longer",
        attempt=1,
        round=1,
        worker_id="w1",
        incarnation="i1",
    )
    row = play(told, row=row_in(Stage.INIT, attempts=1))
    assert (row.stage, row.status, row.boundary) == (Stage.ENDED, Status.TIMEOUT, Boundary.SANDBOX)


def test_an_attached_session_ends_at_its_deadline() -> None:
    """Absolute, whatever its stage; sealed for whoever ran it."""
    row, caused = pass_time(play(external()), 89_000)
    assert [f.type for f in caused] == [Fact.SEALED, Fact.ENDED]
    assert (row.status, row.boundary) == (Status.TIMEOUT, Boundary.NONE)


def test_time_in_a_pause_is_not_time_in_the_queue() -> None:
    """Nobody could have taken it; afterwards its budget goes on where it was."""
    row = row_in(Stage.QUEUED)
    since = row.queued_at
    pause = Control(control_id="1", target="p", target_kind="policy", action=ControlAction.PAUSE, at=since + 40_000)
    resume = replace(pause, control_id="2", action=ControlAction.RESUME, at=since + 940_000)
    assert pass_time(row, 900_000, Controls.of(pause))[1] == []
    both = Controls.of(pause, resume)
    assert pass_time(row, 999_999, both)[1] == []
    assert [f.type for f in pass_time(row, 1_000_000, both)[1]] == [Fact.ENDED]


def test_commands_carry_absolute_deadlines() -> None:
    """From the fact that caused them: preparing, waiting for a slot and running, grading with both of its budgets."""
    first = registered()
    row: SessionRow | None = None
    found: dict[Stage, tuple[int, int]] = {}
    for n, one in enumerate([first, *good_life()]):
        row = apply(row, one, n, (n + 1) * 1000)
        assert row is not None
        for record in outputs(row, one, first):
            if isinstance(record, StageCommand):
                found[record.stage] = (record.issued_at, record.deadline_at)
    assert {stage: (end - issued) // 1000 for stage, (issued, end) in found.items()} == {
        Stage.INIT: 20,
        Stage.RUNNING: 100 + 50,
        Stage.POSTRUN: 10 + 300,
    }
