"""The timer: free places, deadlines, lost workers, overdue seals and controls become facts, and nothing else happens."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from schemas.records import Control, ControlAction, Heartbeat, Held, SessionEvent, Stage, Status
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.row import SessionRow
from stream_processors.orchestrator.tick import Limits, Seen, tick
from tests.stream_processors.orchestrator.facts import SESSION, external, fact, lease, play, row_in

LIMITS = Limits(lease_ttl_ms=15_000, seal_grace_ms=30_000, end_grace_ms=20_000, command_grace_ms=10_000)


def beat(
    worker: str = "w1", *, free: int = 4, seq: int = 1, holds: list[Held] | None = None, **fields: Any
) -> Heartbeat:
    return Heartbeat(
        node_id=worker, role="worker", incarnation="i1", free_init=free, seq=seq, holds=holds or [], **fields
    )


def fleet(*beats: Heartbeat, at: int = 0, fresh_since: int | None = 0) -> FleetView:
    view = FleetView(fresh_since=fresh_since)
    for b in beats:
        view.take(b, at)
    return view


def due(rows: list[SessionRow], view: FleetView, now: int, **fields: Any) -> list[SessionEvent]:
    return tick(Seen(rows, view, LIMITS, now, **fields))


def queued(session_id: str, *, priority: int = 0, at: int = 0) -> SessionRow:
    return SessionRow(session_id, stage=Stage.QUEUED, priority=priority, registered_at=at)


def test_sessions_go_to_free_places_by_priority_then_age() -> None:
    """Two places for three sessions: the urgent one, then the oldest."""
    rows = [queued("young", at=9), queued("old", at=1), queued("urgent", priority=5, at=99)]
    facts = due(rows, fleet(beat(free=2)), 100)
    assert [(f.type, f.session_id, f.worker_id, f.round) for f in facts] == [
        (Fact.INIT_ASSIGNED, "urgent", "w1", 1),
        (Fact.INIT_ASSIGNED, "old", "w1", 1),
    ]


def test_the_worker_with_most_free_places_is_chosen() -> None:
    """Load spreads over the fleet."""
    facts = due([queued("a"), queued("b"), queued("c")], fleet(beat("w1", free=1), beat("w2", free=3)), 100)
    assert [f.worker_id for f in facts] == ["w2", "w2", "w2"] or sorted(f.worker_id for f in facts) == [
        "w1",
        "w2",
        "w2",
    ]


@pytest.mark.parametrize(
    "view",
    [
        fleet(beat(free=0)),
        fleet(beat(is_draining=True)),
        fleet(beat(), at=-60_000),
        fleet(replace(beat(), role="proxy")),
        fleet(),
    ],
    ids=["full", "draining", "silent", "proxy", "nobody"],
)
def test_nobody_gets_a_session_who_cannot_take_it(view: FleetView) -> None:
    """Full, draining, silent or no worker at all: the session waits."""
    assert due([queued("a")], view, 1000) == []


def test_a_restarted_worker_gets_nothing_in_its_earlier_incarnation() -> None:
    """The dead incarnation's last beat is fresh, and says that it has most places; a zombie that beats again is one that lives."""
    view = fleet(beat("w1", free=9), replace(beat("w1", free=1), incarnation="i2"))
    assert [f.incarnation for f in due([queued("a"), queued("b")], view, 100)] == ["i2"]
    view.take(beat("w1", free=9, seq=2), 100)
    assert [f.incarnation for f in due([queued("a")], view, 100)] == ["i1"]


def test_a_worker_that_declined_is_asked_again_after_its_next_beat() -> None:
    """Its last beat is known to be wrong."""
    view = fleet(beat())
    view.mark_full("w1", "i1")
    assert due([queued("a")], view, 1000) == []
    view.take(beat(seq=2), 500)
    assert len(due([queued("a")], view, 1000)) == 1


def test_places_given_away_a_moment_ago_count() -> None:
    """Published but not applied, or applied but not yet in a beat: the place isn't given twice."""
    view = fleet(beat(free=1))
    (given,) = due([queued("a")], view, 100)
    assert due([queued("a"), queued("b")], view, 200, pending=[given]) == []
    assigned = replace(
        queued("a"), stage=Stage.INIT, worker_id="w1", incarnation="i1", round=1, moved_at=150, since_at=150
    )
    assert due([assigned, queued("b")], view, 300) == []
    view.take(beat(free=1, seq=2, holds=[Held(session_id="a", attempt=1)]), 400)
    assert [f.session_id for f in due([assigned, queued("b")], view, 500)] == ["b"]


@pytest.mark.parametrize(
    ("stage", "allowed_s"),
    [
        (Stage.QUEUED, 100),
        (Stage.INIT, 20 + 20),
        (Stage.READY, 100 + 20),
        (Stage.RUNNING, 50 + 20),
        (Stage.POSTRUN, 330),
    ],
)
def test_every_stage_has_a_budget_of_its_own(stage: Stage, allowed_s: int) -> None:
    """The fact names stage, attempt and round, so that it can't hit a later one. Workers get a grace for their own limit."""
    row = row_in(stage)
    view = fleet()  # not fresh for long enough to say anything about workers
    view.fresh_since = None
    row = replace(row, sealing={})
    assert due([row], view, row.since_at + allowed_s * 1000 - 1) == []
    (hit,) = due([row], view, row.since_at + allowed_s * 1000)
    assert (hit.type, hit.stage, hit.attempt, hit.round) == (Fact.DEADLINE_HIT, stage, row.attempt, row.round)


def test_standing_in_line_for_its_grading_is_no_part_of_its_budget() -> None:
    """While its worker grades others the session waits, for as long as it may in a queue; then it has its budgets in full."""
    row = replace(row_in(Stage.POSTRUN), sealing={})
    began, whole_ms = row.since_at, 330_000

    def told(at: int, stage: Stage, free: int) -> FleetView:
        held = Held(session_id=row.session_id, attempt=row.attempt, stage=stage)
        view.take(beat(seq=next(seqs), holds=[held], free_postrun=free), at)
        return view

    view, seqs = fleet(), itertools.count()
    view.fresh_since = None
    assert due([row], told(began + whole_ms, Stage.SEALED, 0), began + whole_ms) == []
    assert due([row], told(began + whole_ms + 1, Stage.SEALED, 1), began + whole_ms + 1) != []
    late = began + whole_ms + 100_000
    assert [f.type for f in due([row], told(late, Stage.SEALED, 0), late)] == [Fact.DEADLINE_HIT]
    start = began + whole_ms + 2
    told(start, Stage.POSTRUN, 0)
    row = replace(row, times=replace(row.times, queue_s=1e6))
    assert due([row], told(start + 1000, Stage.POSTRUN, 0), start + whole_ms - 1) == []
    assert [f.type for f in due([row], view, start + whole_ms)] == [Fact.DEADLINE_HIT]


def test_a_silent_holder_loses_its_lease() -> None:
    """Beats missing for the time to live, seen by a view that has been fresh as long."""
    row = row_in(Stage.RUNNING)
    view = fleet(beat(holds=[Held(session_id=SESSION, attempt=1)]), at=row.moved_at)
    assert due([row], view, row.moved_at + 15_000 - 1) == []
    (expired,) = due([row], view, row.moved_at + 15_001)
    assert (expired.type, expired.lease_id, expired.attempt) == (Fact.LEASE_EXPIRED, lease(), 1)


@pytest.mark.parametrize("fresh_since", [None, 20_000])
def test_silence_means_nothing_to_a_view_that_was_not_listening(fresh_since: int | None) -> None:
    """After a start, an outage or a reassignment a full period of reading comes first."""
    row = row_in(Stage.RUNNING)
    assert due([row], fleet(fresh_since=fresh_since), row.moved_at + 25_000) == []


def test_only_the_granted_incarnation_renews_a_lease() -> None:
    """The same worker, started again, doesn't hold what its predecessor held."""
    row = row_in(Stage.RUNNING)
    view = fleet(at=row.moved_at)
    again = replace(beat(holds=[Held(session_id=SESSION, attempt=1)]), incarnation="i2")
    view.take(again, row.moved_at + 15_000)
    assert [f.type for f in due([row], view, row.moved_at + 15_001)] == [Fact.LEASE_EXPIRED]


def test_a_holder_that_beats_without_the_session_loses_it() -> None:
    """It lives, but says that it hasn't got the session."""
    row = row_in(Stage.RUNNING)
    view = fleet(beat(), at=row.moved_at + 14_000)
    assert [f.type for f in due([row], view, row.moved_at + 15_001)] == [Fact.LEASE_EXPIRED]


def test_an_assignment_that_never_shows_up_is_lost() -> None:
    """After the command's grace the session isn't in its worker's beats: the next round."""
    row = row_in(Stage.INIT)
    view = fleet(beat(), at=row.moved_at + 9_000, fresh_since=-20_000)
    assert due([row], view, row.moved_at + 9_999) == []
    (lost,) = due([row], view, row.moved_at + 10_000)
    assert (lost.type, lost.round, lost.worker_id) == (Fact.INIT_LOST, 1, "w1")


def test_a_preparation_that_is_held_is_left_alone() -> None:
    """Listed in the beats: only its budget ends it."""
    row = row_in(Stage.INIT)
    view = fleet(beat(holds=[Held(session_id=SESSION, attempt=1)]), at=row.moved_at + 12_000, fresh_since=-20_000)
    assert due([row], view, row.moved_at + 15_000) == []


def test_a_sealed_lease_is_overdue_after_its_grace() -> None:
    """Also when the session has ended: the assembler may still be waiting for a writer."""
    row = row_in(Stage.ENDED)
    sealed_at, writers = row.sealing[lease()]
    assert due([row], fleet(), sealed_at + 29_999) == []
    (overdue,) = due([row], fleet(), sealed_at + 30_000)
    assert (overdue.type, overdue.lease_id, overdue.writers) == (Fact.SEAL_OVERDUE, lease(), list(writers))


@pytest.mark.parametrize(
    ("kind", "target"), [("session", SESSION), ("group", "g1"), ("task", "t1"), ("policy", "p"), ("session", "*")]
)
def test_a_cancel_reaches_what_it_names(kind: str, target: str) -> None:
    """By session, group, task or policy, or all."""
    row = row_in(Stage.RUNNING)
    control = Control(action=ControlAction.CANCEL, target=target, target_kind=kind, reason="no", at=5000)
    (cancel,) = due([row], fleet(at=row.moved_at), row.moved_at, controls=Controls.of(control))
    assert (cancel.type, cancel.session_id, cancel.error) == (Fact.CANCEL_REQUESTED, SESSION, "no")


@pytest.mark.parametrize(
    "control",
    [
        Control(action=ControlAction.CANCEL, target="other", at=5000),
        Control(action=ControlAction.CANCEL, target=SESSION, at=999),
        Control(action=ControlAction.CANCEL, target=SESSION, lease_id=lease(2), at=5000),
        Control(action=ControlAction.DRAIN, target=SESSION, at=5000),
    ],
    ids=["another", "earlier", "other lease", "no cancel"],
)
def test_a_control_that_means_something_else_does_nothing(control: Control) -> None:
    """Another target, a time before the session was registered, another lease, another action."""
    row = row_in(Stage.RUNNING)
    assert due([row], fleet(at=row.moved_at), row.moved_at, controls=Controls.of(control)) == []


def test_a_worker_that_was_asked_to_end_a_run_gets_a_moment() -> None:
    """After it, the lease expires; the cancel isn't told twice."""
    row = replace(row_in(Stage.RUNNING), ending=Status.CANCELLED)
    control = Control(action=ControlAction.CANCEL, target=SESSION, at=5000)
    view = fleet(beat(holds=[Held(session_id=SESSION, attempt=1)]), at=row.moved_at + 19_000)
    assert due([row], view, row.moved_at + 19_999, controls=Controls.of(control)) == []
    assert [f.type for f in due([row], view, row.moved_at + 20_000, controls=Controls.of(control))] == [
        Fact.LEASE_EXPIRED
    ]


def test_an_attached_session_has_only_its_deadline() -> None:
    """No worker, no beats: nothing but the absolute deadline touches it."""
    row = play(external())
    assert due([row], fleet(), 89_999) == []
    (hit,) = due([row], fleet(), 90_000)
    assert (hit.type, hit.stage) == (Fact.DEADLINE_HIT, Stage.READY)


def test_what_the_timer_says_the_core_understands() -> None:
    """Each fact that the timer makes moves the row that it was made for."""
    from stream_processors.orchestrator.core import apply

    for stage in (Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN):
        row = row_in(stage)
        for view, now in ((fleet(beat(), at=row.moved_at), row.moved_at + 16_000), (fleet(fresh_since=None), 10**9)):
            for f in due([row], view, now):
                assert apply(row, f, 50, now) is not row, (stage, f.type)
    assert fact(Fact.READY).session_id == SESSION
