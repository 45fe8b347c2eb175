"""The session's state machine as one table: which fact does what in which stage. What isn't listed does nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from schemas.records import SessionEventType as Fact
from schemas.records import Stage


class Move(StrEnum):
    """What a fact does to a session."""

    ENQUEUE = "enqueue"
    """It waits for a worker; an attached session (owner external) is granted at once."""
    ASSIGN = "assign"
    """A worker is told to prepare it."""
    GRANT = "grant"
    """The first worker that is ready gets the attempt's lease."""
    COMMAND_RUN = "command_run"
    """The grant stands on the log: its holder is told to run."""
    START = "start"
    """The harness runs; later writers of the lease are noted."""
    FINISH = "finish"
    """The harness' end is noted; the seal follows."""
    SEAL = "seal"
    """The lease is over: its holder is told to grade and tear down."""
    GRADE = "grade"
    """The end, as the run and its grading say."""
    REQUEUE = "requeue"
    """The same attempt waits for another worker."""
    RETRY_INIT = "retry_init"
    """The next attempt waits, or the session fails, without ever having had a lease."""
    EXPIRE = "expire"
    """The lease's holder is gone: it is sealed for it; the next attempt waits, or the session fails."""
    OVERRUN = "overrun"
    """The run's deadline passed: its holder has a moment to kill and seal, then the lease expires."""
    LOSE_GRADING = "lose_grading"
    """The run is captured, its grading is lost: the session fails at the evaluator."""
    CANCEL = "cancel"
    """The end by request; a worker that holds the lease has a moment to seal it by itself."""
    GIVE_UP_QUEUE = "give_up_queue"
    """The queue's budget passed: the end, as a time-out."""
    NOTE_OVERDUE = "note_overdue"
    """A sealed lease's grace is over and the fact stands on the log."""
    NOTE_BUILT = "note_built"
    """A sealed lease's trajectory is built: nobody needs to be told that its grace is over."""
    CLOSE = "close"
    """The terminal fact stands on the log: nothing of the task is needed any more."""


NEW: Final = Stage.UNKNOWN
"""The stage of a session that has no row."""

_STAGES: Final = (Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN, Stage.ENDED)

MOVES: Final[dict[tuple[Stage, Fact], Move]] = {
    (NEW, Fact.REGISTERED): Move.ENQUEUE,
    # waiting for a worker; a worker that was thought lost may still become ready
    (Stage.QUEUED, Fact.INIT_ASSIGNED): Move.ASSIGN,
    (Stage.QUEUED, Fact.READY): Move.GRANT,
    (Stage.QUEUED, Fact.DEADLINE_HIT): Move.GIVE_UP_QUEUE,
    (Stage.QUEUED, Fact.CANCEL_REQUESTED): Move.CANCEL,
    # a worker prepares it
    (Stage.INIT, Fact.READY): Move.GRANT,
    (Stage.INIT, Fact.INIT_FAILED): Move.RETRY_INIT,
    (Stage.INIT, Fact.DEADLINE_HIT): Move.RETRY_INIT,
    (Stage.INIT, Fact.DECLINED): Move.REQUEUE,
    (Stage.INIT, Fact.INIT_LOST): Move.REQUEUE,
    (Stage.INIT, Fact.CANCEL_REQUESTED): Move.CANCEL,
    # the lease is granted, the harness doesn't run yet
    (Stage.READY, Fact.GRANTED): Move.COMMAND_RUN,
    (Stage.READY, Fact.STARTED): Move.START,
    (Stage.READY, Fact.FINISHED): Move.FINISH,
    (Stage.READY, Fact.SEALED): Move.SEAL,
    (Stage.READY, Fact.DECLINED): Move.EXPIRE,
    (Stage.READY, Fact.LEASE_EXPIRED): Move.EXPIRE,
    (Stage.READY, Fact.DEADLINE_HIT): Move.EXPIRE,
    (Stage.READY, Fact.CANCEL_REQUESTED): Move.CANCEL,
    # the harness runs
    (Stage.RUNNING, Fact.STARTED): Move.START,
    (Stage.RUNNING, Fact.FINISHED): Move.FINISH,
    (Stage.RUNNING, Fact.SEALED): Move.SEAL,
    (Stage.RUNNING, Fact.LEASE_EXPIRED): Move.EXPIRE,
    (Stage.RUNNING, Fact.DEADLINE_HIT): Move.OVERRUN,
    (Stage.RUNNING, Fact.CANCEL_REQUESTED): Move.CANCEL,
    # the lease is sealed, its holder grades
    (Stage.POSTRUN, Fact.GRADED): Move.GRADE,
    (Stage.POSTRUN, Fact.LEASE_EXPIRED): Move.LOSE_GRADING,
    (Stage.POSTRUN, Fact.DEADLINE_HIT): Move.LOSE_GRADING,
    (Stage.POSTRUN, Fact.CANCEL_REQUESTED): Move.CANCEL,
    # the end is final
    (Stage.ENDED, Fact.ENDED): Move.CLOSE,
    # the books of sealed leases (also of earlier attempts) are kept in every stage
    **{(stage, Fact.BUILT): Move.NOTE_BUILT for stage in _STAGES},
    **{(stage, Fact.SEAL_OVERDUE): Move.NOTE_OVERDUE for stage in _STAGES},
}


def move_for(stage: Stage, fact: Fact) -> Move | None:
    """What a fact does in a stage; None: nothing (a repetition, a late fact, one that was overtaken)."""
    return MOVES.get((stage, fact))
