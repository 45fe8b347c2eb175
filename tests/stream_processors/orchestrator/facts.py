"""Rows in every stage and facts that concern them, for the orchestrator's tests."""

from __future__ import annotations

from typing import Any

from schemas import ids
from schemas.records import Boundary, SessionEvent, SessionSpec, Stage, Status
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.core import apply
from stream_processors.orchestrator.row import SessionRow

SESSION = "s1"
WORKER: dict[str, Any] = {"worker_id": "w1", "incarnation": "i1"}


def lease(attempt: int = 1) -> str:
    return ids.lease_id(SESSION, attempt)


def fact(kind: Fact, **fields: Any) -> SessionEvent:
    """A fact of the session; status and boundary by their names."""
    if "status" in fields:
        fields["status"] = Status(fields["status"])
    if "boundary" in fields:
        fields["boundary"] = Boundary(fields["boundary"])
    return SessionEvent(**{"session_id": SESSION, "type": kind, "group_id": "g1", "task_id": "t1", **fields})


def registered(**fields: Any) -> SessionEvent:
    task = {"max_attempts": 2, "priority": 0, "budgets": {"queue_s": 100, "init_s": 20, "run_s": 50, "postrun_s": 10}}
    spec = SessionSpec(task_id="t1", group_id="g1", policy_id="p", harness="shell")
    base: dict[str, Any] = {"spec": spec, "task": task, "at": 1000}
    return fact(Fact.REGISTERED, **{**base, **fields})


def external(**fields: Any) -> SessionEvent:
    return registered(owner="external", deadline_at=90_000, **fields)


def good_life(attempt: int = 1, **fields: Any) -> list[SessionEvent]:
    """The facts of a good run after its registration, up to `graded`."""
    held = {"attempt": attempt, "round": 1, **WORKER}
    leased = {**held, "lease_id": lease(attempt)}
    return [
        fact(Fact.INIT_ASSIGNED, stage=Stage.INIT, **held),
        fact(Fact.READY, **held),
        fact(Fact.GRANTED, **leased),
        fact(Fact.STARTED, writers=[1], **leased),
        fact(Fact.FINISHED, status="completed", **leased),
        fact(Fact.SEALED, writers=[1], **leased),
        fact(Fact.GRADED, status="completed", rewards=["reward"], expects_reward=True, **leased),
    ]


def play(*facts: SessionEvent, row: SessionRow | None = None) -> SessionRow:
    """The row after these facts, at offsets from 0 and times from 1000 on."""
    start = -1 if row is None else row.version
    for n, f in enumerate(facts, start + 1):
        row = apply(row, f, n, (n + 1) * 1000)
    assert row is not None
    return row


def row_in(stage: Stage, attempts: int = 2) -> SessionRow:
    """A row that came into a stage in the ordinary way."""
    task = {**registered().task, "max_attempts": attempts}
    steps = {
        Stage.QUEUED: 0,
        Stage.INIT: 1,
        Stage.READY: 3,
        Stage.RUNNING: 4,
        Stage.POSTRUN: 6,
        Stage.ENDED: 7,
    }[stage]
    row = play(registered(task=task), *good_life()[:steps])
    assert row.stage is stage
    return row
