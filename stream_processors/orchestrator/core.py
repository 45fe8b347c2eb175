"""The orchestrator's pure core: a fact changes a session's row; row and fact together determine the outputs.

A fact that doesn't concern the row's present attempt, round, holder or lease does nothing: that is the fencing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from schemas import ids
from schemas.records import Boundary, SessionEvent, Stage, Status
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.row import EXTERNAL, SessionRow, Times
from stream_processors.orchestrator.states import NEW, Move, move_for

OF_LEASE: Final = frozenset({Fact.GRANTED, Fact.STARTED, Fact.FINISHED, Fact.SEALED, Fact.GRADED, Fact.LEASE_EXPIRED})
"""Facts that count only for the lease that the row holds."""

MOST_INITS_LOST: Final = 5
"""An attempt whose workers disappeared that often while they prepared it is used up: what it prepares may be what kills them."""

OF_ROUND: Final = frozenset({Fact.INIT_FAILED, Fact.INIT_LOST})
"""Facts that count only for the assignment that the row waits for."""


def apply(row: SessionRow | None, fact: SessionEvent, offset: int, at: int) -> SessionRow | None:
    """The row after a fact at this offset and time (UTC epoch ms); the same object when the fact does nothing.

    `offset` must be higher than the row's version: the caller tells repetitions apart.
    """
    stage = NEW if row is None else row.stage
    move = move_for(stage, fact.type)
    if move is None or (row is not None and not _concerns(row, fact, stage)):
        return row
    before = _registered(fact, at) if row is None else row
    after = _APPLY[move](before, fact, at)
    if after is before and row is not None:
        return row
    since_at = at if after.stage is not stage else after.since_at
    return replace(after, version=offset, move=move.value, moved_at=at, since_at=since_at)


def _concerns(row: SessionRow, fact: SessionEvent, stage: Stage) -> bool:
    if fact.type in OF_LEASE:
        return fact.lease_id == row.lease_id
    if fact.type is Fact.READY:
        return fact.attempt == row.attempt
    if fact.type is Fact.INIT_ASSIGNED:
        return fact.attempt == row.attempt and fact.round == row.round + 1
    if fact.type in OF_ROUND:
        return (fact.attempt, fact.round, fact.worker_id) == (row.attempt, row.round, row.worker_id)
    if fact.type is Fact.DECLINED:
        if stage is Stage.READY:
            return bool(fact.lease_id) and fact.lease_id == row.lease_id
        return (fact.attempt, fact.round, fact.worker_id) == (row.attempt, row.round, row.worker_id)
    if fact.type is Fact.DEADLINE_HIT:
        return fact.stage is stage and fact.attempt == row.attempt and fact.round == row.round
    if fact.type in (Fact.SEAL_OVERDUE, Fact.BUILT):
        return fact.lease_id in row.sealing
    if fact.type is Fact.CANCEL_REQUESTED:
        return not (_is_early_stop(fact) and (stage is Stage.POSTRUN or row.status is not Status.NONE))
    return True


def _is_early_stop(fact: SessionEvent) -> bool:
    """Whether a cancel only saves what is still to be run: what has run is graded."""
    return isinstance(fact.details, dict) and bool(fact.details.get("early_stop"))


def _registered(fact: SessionEvent, at: int) -> SessionRow:
    """The row of a new session, from the fact that registers it."""
    task: dict[str, Any] = fact.task if isinstance(fact.task, dict) else {}
    budgets = task.get("budgets") or {}
    known = {name: float(budgets[name]) for name in Times.__dataclass_fields__ if name in budgets}
    spec = fact.spec
    return SessionRow(
        session_id=fact.session_id,
        group_id=fact.group_id,
        task_id=fact.task_id,
        policy_id=spec.policy_id if spec else "",
        harness=spec.harness if spec else "",
        owner=fact.owner,
        priority=int(task.get("priority") or 0),
        max_attempts=1 if fact.owner == EXTERNAL else int(task.get("max_attempts") or 1),
        times=Times(**known),
        # Its submitter's clock may be ahead, but nothing is registered later than it stands on the log.
        registered_at=min(fact.at or at, at),
        deadline_at=fact.deadline_at,
    )


def _enqueue(row: SessionRow, _: SessionEvent, at: int) -> SessionRow:
    if row.is_external:
        lease = ids.lease_id(row.session_id, 1)
        return replace(row, stage=Stage.READY, lease_id=lease, worker_id=EXTERNAL, is_open=True)
    return replace(row, stage=Stage.QUEUED, queued_at=at)


def _assign(row: SessionRow, fact: SessionEvent, _: int) -> SessionRow:
    return replace(row, stage=Stage.INIT, round=fact.round, worker_id=fact.worker_id, incarnation=fact.incarnation)


def _grant(row: SessionRow, fact: SessionEvent, _: int) -> SessionRow:
    return replace(
        row,
        stage=Stage.READY,
        round=fact.round or row.round,
        worker_id=fact.worker_id,
        incarnation=fact.incarnation,
        lease_id=ids.lease_id(row.session_id, row.attempt),
        is_open=True,
    )


def _command_run(row: SessionRow, _: SessionEvent, __: int) -> SessionRow:
    return row if row.is_commanded else replace(row, is_commanded=True)


def _start(row: SessionRow, fact: SessionEvent, _: int) -> SessionRow:
    return replace(row, stage=Stage.RUNNING, writers=_union(row, fact))


def _finish(row: SessionRow, fact: SessionEvent, _: int) -> SessionRow:
    if row.ending is not Status.NONE:  # what ended it came first and stands
        return row
    return replace(row, status=fact.status, boundary=fact.boundary, error=fact.error)


def _union(row: SessionRow, fact: SessionEvent) -> tuple[int, ...]:
    return tuple(sorted({*row.writers, *fact.writers}))


def _sealed(row: SessionRow, writers: tuple[int, ...], at: int) -> SessionRow:
    """The row with its lease sealed and its grace begun."""
    return replace(row, is_open=False, writers=writers, sealing={**row.sealing, row.lease_id: (at, writers)})


def _seal(row: SessionRow, fact: SessionEvent, at: int) -> SessionRow:
    sealed = _sealed(row, _union(row, fact), at)
    if Status.CANCELLED in (row.status, row.ending):  # nobody waits for its grade
        return _failed(sealed, Boundary.NONE, row.error or "cancelled by request", Status.CANCELLED)
    return replace(sealed, stage=Stage.POSTRUN)


def _grade(row: SessionRow, fact: SessionEvent, _: int) -> SessionRow:
    """The run's own failure comes first; a good run whose grading failed is the evaluator's failure.

    A worker hears of a cancellation as soon as we do, and may tell of it first.
    """
    if fact.status is Status.CANCELLED:
        return _failed(row, Boundary.NONE, fact.error or "cancelled by request", Status.CANCELLED)
    status = Status.COMPLETED if row.status in (Status.NONE, Status.UNKNOWN) else row.status
    graded = replace(row, stage=Stage.ENDED, status=status, rewards=tuple(fact.rewards))
    if fact.status in (Status.FAILED, Status.TIMEOUT):
        if status is Status.COMPLETED:
            boundary = fact.boundary if fact.boundary not in (Boundary.NONE, Boundary.UNKNOWN) else Boundary.EVALUATOR
            graded = replace(graded, status=Status.FAILED, boundary=boundary, error=fact.error)
        return replace(graded, expects_reward=False, rewards=())
    return replace(graded, expects_reward=fact.expects_reward)


def _requeue(row: SessionRow, fact: SessionEvent, at: int) -> SessionRow:
    waiting = replace(row, stage=Stage.QUEUED, worker_id="", incarnation="")
    if fact.type is Fact.DECLINED:
        return waiting
    if row.inits_lost + 1 < MOST_INITS_LOST:
        # The time that it was being prepared isn't time in the queue.
        return replace(waiting, queued_at=row.queued_at + max(0, at - row.since_at), inits_lost=row.inits_lost + 1)
    if row.attempt < row.max_attempts:
        return _next_attempt(row, at)
    return _failed(row, Boundary.SANDBOX, f"{MOST_INITS_LOST} workers in a row were lost while they prepared it")


def _next_attempt(row: SessionRow, at: int) -> SessionRow:
    return replace(
        row,
        stage=Stage.QUEUED,
        queued_at=at,
        attempt=row.attempt + 1,
        round=0,
        inits_lost=0,
        worker_id="",
        incarnation="",
        lease_id="",
        is_open=False,
        is_commanded=False,
        writers=(),
        status=Status.NONE,
        boundary=Boundary.NONE,
        error="",
        ending=Status.NONE,
    )


def _failed(row: SessionRow, boundary: Boundary, error: str, status: Status = Status.FAILED) -> SessionRow:
    return replace(row, stage=Stage.ENDED, status=status, boundary=boundary, error=error, is_open=False)


def _retry_init(row: SessionRow, fact: SessionEvent, at: int) -> SessionRow:
    if row.attempt < row.max_attempts:
        return _next_attempt(row, at)
    if fact.type is Fact.DEADLINE_HIT:
        error = f"preparing took longer than {row.times.init_s:g} s (budgets.init_s)"
        return _failed(row, Boundary.SANDBOX, error, Status.TIMEOUT)
    boundary = fact.boundary if fact.boundary not in (Boundary.NONE, Boundary.UNKNOWN) else Boundary.SANDBOX
    status = Status.TIMEOUT if fact.status is Status.TIMEOUT else Status.FAILED
    return _failed(row, boundary, fact.error or "preparing failed", status)


def _expire(row: SessionRow, fact: SessionEvent, at: int) -> SessionRow:
    sealed = _sealed(row, row.writers, at)
    if row.ending is not Status.NONE:  # asked to end it, the holder didn't
        if row.status is Status.COMPLETED:
            return _failed(sealed, Boundary.SANDBOX, f"the run had ended, but worker {row.worker_id} never sealed it")
        return _failed(sealed, row.boundary, row.error, row.status)
    if row.is_external:
        return _failed(sealed, Boundary.NONE, "the session's deadline passed", Status.TIMEOUT)
    if row.attempt < row.max_attempts:
        return _next_attempt(sealed, at)
    why = {
        Fact.DEADLINE_HIT: "granted, but its worker didn't start it in time",
        Fact.DECLINED: fact.error or "its worker declined to run it",
    }.get(fact.type, f"worker {row.worker_id} was lost")
    status = Status.TIMEOUT if fact.type is Fact.DEADLINE_HIT else Status.FAILED
    return _failed(sealed, Boundary.SANDBOX, f"{why}; no attempt of {row.max_attempts} is left", status)


def _overrun(row: SessionRow, fact: SessionEvent, at: int) -> SessionRow:
    if row.is_external:
        return _expire(row, fact, at)
    if row.ending is not Status.NONE:
        return row
    if row.status is not Status.NONE:  # it ended in time, only its seal takes long
        return replace(row, ending=Status.TIMEOUT)
    error = f"the run took longer than {row.times.run_s:g} s (budgets.run_s)"
    return replace(row, ending=Status.TIMEOUT, status=Status.TIMEOUT, boundary=Boundary.HARNESS, error=error)


def _lose_grading(row: SessionRow, fact: SessionEvent, _: int) -> SessionRow:
    if row.is_external:
        return _failed(row, Boundary.NONE, "the session's deadline passed before it was graded", Status.TIMEOUT)
    late = fact.type is Fact.DEADLINE_HIT
    why = "grading took longer than its budgets" if late else f"worker {row.worker_id} was lost while grading"
    if row.status in (Status.FAILED, Status.TIMEOUT):  # the run's own end says more
        return replace(row, stage=Stage.ENDED, is_open=False)
    return _failed(row, Boundary.EVALUATOR, why)


def _cancel(row: SessionRow, fact: SessionEvent, at: int) -> SessionRow:
    error = fact.error or "cancelled by request"
    if row.is_open and not row.is_external:
        if row.ending is Status.CANCELLED:
            return row
        return replace(row, ending=Status.CANCELLED, status=Status.CANCELLED, boundary=Boundary.NONE, error=error)
    ended = _sealed(row, row.writers, at) if row.is_open else row
    return _failed(ended, Boundary.NONE, error, Status.CANCELLED)


def _give_up_queue(row: SessionRow, _: SessionEvent, __: int) -> SessionRow:
    error = f"no worker took it within {row.times.queue_s:g} s (budgets.queue_s)"
    return _failed(row, Boundary.NONE, error, Status.TIMEOUT)


def _close(row: SessionRow, _: SessionEvent, __: int) -> SessionRow:
    return row if row.is_told else replace(row, is_told=True)


def _close_seal(row: SessionRow, fact: SessionEvent, _: int) -> SessionRow:
    return replace(row, sealing={k: v for k, v in row.sealing.items() if k != fact.lease_id})


_APPLY: Final[dict[Move, Callable[[SessionRow, SessionEvent, int], SessionRow]]] = {
    Move.ENQUEUE: _enqueue,
    Move.ASSIGN: _assign,
    Move.GRANT: _grant,
    Move.COMMAND_RUN: _command_run,
    Move.START: _start,
    Move.FINISH: _finish,
    Move.SEAL: _seal,
    Move.GRADE: _grade,
    Move.REQUEUE: _requeue,
    Move.RETRY_INIT: _retry_init,
    Move.EXPIRE: _expire,
    Move.OVERRUN: _overrun,
    Move.LOSE_GRADING: _lose_grading,
    Move.CANCEL: _cancel,
    Move.GIVE_UP_QUEUE: _give_up_queue,
    Move.NOTE_OVERDUE: _close_seal,
    Move.NOTE_BUILT: _close_seal,
    Move.CLOSE: _close,
}
