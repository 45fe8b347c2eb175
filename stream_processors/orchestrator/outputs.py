"""What a move causes: commands, facts and the session's state, determined by the row after it and by the fact alone.

So a fact that is delivered again causes the same records under the same ids.
"""

from __future__ import annotations

from typing import Any

from schemas import ids
from schemas.records import Record, SessionEvent, SessionSpec, SessionState, Stage, StageCommand
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.row import SessionRow
from stream_processors.orchestrator.states import Move

_WORKER_SLACK_MS = 60_000
"""Between a worker's own deadline and the time after which it takes a command for stale."""

_BOOKS = frozenset({Move.NOTE_OVERDUE, Move.NOTE_BUILT, Move.CLOSE})
"""Moves that only close books: the session stands where it stood."""


def outputs(row: SessionRow, fact: SessionEvent, registered: SessionEvent) -> list[Record]:
    """The records that `fact` causes, in order; `row` is the row after it, `registered` the session's first fact."""
    move = Move(row.move)
    records: list[Record] = []
    match move:
        case Move.ENQUEUE if row.is_external:
            records.append(_granted(row, registered))
        case Move.GRANT:
            records.append(_granted(row, registered))
        case Move.ASSIGN:
            init_ms = int(row.times.init_s * 1000)
            records.append(_command(row, registered, Stage.INIT, init_ms + _WORKER_SLACK_MS, init_ms))
        case Move.COMMAND_RUN if not row.is_external:
            # A ready worker may wait for a free place to run, as long as a session may wait at all.
            wait_ms = int(row.times.queue_s * 1000)
            records.append(_command(row, registered, Stage.RUNNING, wait_ms, wait_ms + int(row.times.run_s * 1000)))
        case Move.SEAL if row.stage is Stage.POSTRUN and not row.is_external:
            grading_ms = int((row.times.postrun_s + row.times.evaluate_s) * 1000)
            records.append(_command(row, registered, Stage.POSTRUN, grading_ms + _WORKER_SLACK_MS, grading_ms))
        case Move.EXPIRE | Move.OVERRUN | Move.CANCEL:
            records += _sealed_by_us(row, fact, registered)
        case _:
            pass
    if move in _BOOKS:
        return records
    if row.stage is Stage.ENDED:
        records.append(_ended(row, registered))
    records.append(state_of(row))
    return records


def _common(row: SessionRow) -> dict[str, Any]:
    return {"session_id": row.session_id, "group_id": row.group_id, "task_id": row.task_id, "owner": row.owner}


def _granted(row: SessionRow, registered: SessionEvent) -> SessionEvent:
    return SessionEvent(
        type=Fact.GRANTED,
        attempt=row.attempt,
        round=row.round,
        lease_id=row.lease_id,
        worker_id=row.worker_id,
        incarnation=row.incarnation,
        deadline_at=row.deadline_at,
        spec=registered.spec,
        at=row.moved_at,
        **_common(row),
    )


def _command(
    row: SessionRow, registered: SessionEvent, stage: Stage, expires_ms: int, deadline_ms: int
) -> StageCommand:
    return StageCommand(
        stage=stage,
        worker_id=row.worker_id,
        incarnation=row.incarnation,
        session_id=row.session_id,
        attempt=row.attempt,
        round=row.round,
        lease_id=row.lease_id,
        issued_at=row.moved_at,
        expires_at=row.moved_at + expires_ms,
        deadline_at=row.moved_at + deadline_ms,
        spec=registered.spec or SessionSpec(),
        task=registered.task,
    )


def _sealed_by_us(row: SessionRow, fact: SessionEvent, registered: SessionEvent) -> list[Record]:
    """The fact that a lease is over, when this move was what ended it."""
    lease_id = ids.lease_id(row.session_id, fact.attempt) if fact.type is not Fact.CANCEL_REQUESTED else row.lease_id
    if not lease_id or row.sealing.get(lease_id, (-1, ()))[0] != row.moved_at:
        return []
    return [
        SessionEvent(
            type=Fact.SEALED,
            attempt=fact.attempt,
            lease_id=lease_id,
            writers=list(row.sealing[lease_id][1]),
            stage=Stage.SEALED,
            spec=registered.spec,
            at=row.moved_at,
            # Told to the assembler: a later attempt runs, nothing of this one may be trained.
            details={"by": "orchestrator", "superseded": row.attempt > fact.attempt},
            **_common(row),
        )
    ]


def _ended(row: SessionRow, registered: SessionEvent) -> SessionEvent:
    return SessionEvent(
        type=Fact.ENDED,
        attempt=row.attempt,
        lease_id=row.lease_id,
        winning_lease=row.lease_id,
        worker_id=row.worker_id,
        incarnation=row.incarnation,
        status=row.status,
        boundary=row.boundary,
        error=row.error,
        expects_trajectory=bool(row.lease_id),
        expects_reward=row.expects_reward,
        rewards=list(row.rewards),
        stage=Stage.ENDED,
        spec=registered.spec,
        at=row.moved_at,
        **_common(row),
    )


def state_of(row: SessionRow) -> SessionState:
    """Where the session stands, for everybody who only wants to know that."""
    return SessionState(
        session_id=row.session_id,
        group_id=row.group_id,
        task_id=row.task_id,
        policy_id=row.policy_id,
        harness=row.harness,
        stage=row.stage,
        status=row.status,
        boundary=row.boundary,
        error=row.error,
        attempt=row.attempt,
        lease_id=row.lease_id,
        lease_open=row.is_open,
        worker_id=row.worker_id,
        incarnation=row.incarnation,
        owner=row.owner,
        state_version=row.version,
        updated_at=row.moved_at,
        deadline_at=row.deadline_at,
    )
