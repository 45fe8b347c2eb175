"""Every cell of the session's state machine: what each fact does in each stage, and that the rest does nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from schemas.records import SessionEvent, Stage
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.core import apply
from stream_processors.orchestrator.states import MOVES, NEW, Move, move_for
from tests.stream_processors.orchestrator.facts import WORKER, fact, lease, registered, row_in

STAGES = [Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN, Stage.ENDED]

# The stage after each legal move, with an attempt left and no wish to end pending.
AFTER: dict[tuple[Stage, Fact], Stage] = {
    (Stage.QUEUED, Fact.INIT_ASSIGNED): Stage.INIT,
    (Stage.QUEUED, Fact.READY): Stage.READY,
    (Stage.QUEUED, Fact.DEADLINE_HIT): Stage.ENDED,
    (Stage.QUEUED, Fact.CANCEL_REQUESTED): Stage.ENDED,
    (Stage.INIT, Fact.READY): Stage.READY,
    (Stage.INIT, Fact.INIT_FAILED): Stage.QUEUED,
    (Stage.INIT, Fact.DEADLINE_HIT): Stage.QUEUED,
    (Stage.INIT, Fact.DECLINED): Stage.QUEUED,
    (Stage.INIT, Fact.INIT_LOST): Stage.QUEUED,
    (Stage.INIT, Fact.CANCEL_REQUESTED): Stage.ENDED,
    (Stage.READY, Fact.GRANTED): Stage.READY,
    (Stage.READY, Fact.STARTED): Stage.RUNNING,
    (Stage.READY, Fact.FINISHED): Stage.READY,
    (Stage.READY, Fact.SEALED): Stage.POSTRUN,
    (Stage.READY, Fact.DECLINED): Stage.QUEUED,
    (Stage.READY, Fact.LEASE_EXPIRED): Stage.QUEUED,
    (Stage.READY, Fact.DEADLINE_HIT): Stage.QUEUED,
    (Stage.READY, Fact.CANCEL_REQUESTED): Stage.READY,
    (Stage.RUNNING, Fact.STARTED): Stage.RUNNING,
    (Stage.RUNNING, Fact.FINISHED): Stage.RUNNING,
    (Stage.RUNNING, Fact.SEALED): Stage.POSTRUN,
    (Stage.RUNNING, Fact.LEASE_EXPIRED): Stage.QUEUED,
    (Stage.RUNNING, Fact.DEADLINE_HIT): Stage.RUNNING,
    (Stage.RUNNING, Fact.CANCEL_REQUESTED): Stage.RUNNING,
    (Stage.POSTRUN, Fact.GRADED): Stage.ENDED,
    (Stage.POSTRUN, Fact.LEASE_EXPIRED): Stage.ENDED,
    (Stage.POSTRUN, Fact.DEADLINE_HIT): Stage.ENDED,
    (Stage.POSTRUN, Fact.CANCEL_REQUESTED): Stage.ENDED,
    (Stage.ENDED, Fact.ENDED): Stage.ENDED,
}


def matching(stage: Stage, kind: Fact) -> SessionEvent:
    """A fact of this kind that concerns the row of `row_in(stage)`."""
    fields: dict[str, object] = {"attempt": 1, "round": 1, "stage": stage, "lease_id": lease(), **WORKER}
    if kind is Fact.INIT_ASSIGNED:
        fields |= {"round": row_in(stage).round + 1, "lease_id": ""}
    elif kind is Fact.DEADLINE_HIT and stage is Stage.QUEUED:
        fields |= {"round": 0}
    elif kind is Fact.FINISHED:
        fields |= {"status": "failed", "boundary": "harness"}
    return fact(kind, **fields)


@pytest.mark.parametrize(("stage", "kind"), list(itertools.product(STAGES, Fact)), ids=str)
def test_a_fact_does_what_the_table_says_and_nothing_else(stage: Stage, kind: Fact) -> None:
    """A listed cell leads to its stage and notes the causing offset; any other leaves the very same row."""
    row = replace(row_in(stage), is_commanded=False)
    after = apply(row, matching(stage, kind), 50, 99_000)
    assert after is not None
    if kind in (Fact.SEAL_OVERDUE, Fact.BUILT):
        # Only a sealed lease's books are kept, whatever the session does meanwhile.
        assert (after is row) == (not row.sealing)
        assert not after.sealing
        assert after.stage is stage
    elif (stage, kind) in AFTER:
        assert (after.stage, after.version) == (AFTER[stage, kind], 50)
        assert after.move == move_for(stage, kind)
    else:
        assert after is row


def test_only_a_registration_makes_a_row() -> None:
    """Facts of unknown sessions do nothing: there is no row to change."""
    for kind in Fact:
        row = apply(None, registered() if kind is Fact.REGISTERED else fact(kind), 0, 1000)
        assert (row is not None) == (kind is Fact.REGISTERED)


def test_the_table_is_what_is_tested() -> None:
    """No legal cell is missing from the expectations above, and every move is used."""
    books = {(stage, kind) for stage in STAGES for kind in (Fact.SEAL_OVERDUE, Fact.BUILT)}
    assert set(MOVES) == set(AFTER) | books | {(NEW, Fact.REGISTERED)}
    assert set(MOVES.values()) == set(Move)
