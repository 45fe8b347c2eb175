"""Groups in every stage and facts that concern them."""

from __future__ import annotations

from typing import Any

from schemas import ids
from schemas.records import GroupEvent, Status
from schemas.records import GroupEventType as Fact
from stream_processors.orchestrator.groups.core import apply
from stream_processors.orchestrator.groups.row import GroupRow

GROUP = "g1"
TASK: dict[str, Any] = {"instruction": "do it", "harness": {"name": "shell"}}


def group_fact(kind: Fact, **fields: Any) -> GroupEvent:
    """A fact of the group."""
    return GroupEvent(**{"group_id": GROUP, "type": kind, "task_id": "t1", "policy_id": "p", **fields})


def group_registered(size: int = 3, **fields: Any) -> GroupEvent:
    """The group's first fact."""
    base = {"size": size, "harness": "shell", "max_requeues": 1, "task": TASK, "at": 1000}
    return group_fact(Fact.REGISTERED, **{**base, **fields})


def admitted(**fields: Any) -> GroupEvent:
    """Its admission."""
    return group_fact(Fact.ADMITTED, **fields)


def scored(index: int, *, usable: bool = True, status: Status = Status.COMPLETED, **fields: Any) -> GroupEvent:
    """The result of one of its sessions."""
    place = {"partition": 2, "offset": 100 + index}
    name = ids.session_id(GROUP, index)
    return group_fact(Fact.SCORED, session_id=name, index=index, is_usable=usable, status=status, **{**place, **fields})


def requeue(trainer: str = "a", reason: str = "stale") -> GroupEvent:
    """A trainer's wish to have it run again."""
    return group_fact(Fact.REQUEUE_REQUESTED, for_trainer=trainer, reason=reason)


def play_group(*facts: GroupEvent, row: GroupRow | None = None) -> GroupRow:
    """The row after these facts, at offsets from 0 and times from 1000 on."""
    start = -1 if row is None else row.version
    for n, fact in enumerate(facts, start + 1):
        row = apply(row, fact, n, (n + 1) * 1000)
    assert row is not None
    return row
