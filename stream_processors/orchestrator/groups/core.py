"""The pure core of groups: a fact changes a group's row; row and fact together determine the outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from schemas.records import GroupEvent, SkippedGroup
from schemas.wishes import labels
from stream_processors.orchestrator.groups.row import GroupRow
from stream_processors.orchestrator.groups.states import GroupMove, GroupStage, move_for

REQUEUED_REASONS: Final = frozenset({"stale", "short"})
"""Why a skipped group is run again: it was good, but came too late, or held too little. The others would be skipped again."""


def apply(row: GroupRow | None, fact: GroupEvent, offset: int, at: int) -> GroupRow | None:
    """The row after a fact at this offset and time (UTC epoch ms); the same object when the fact does nothing."""
    stage = GroupStage.NEW if row is None else row.stage
    move = move_for(stage, fact.type)
    if move is None or (row is None and fact.task is None):  # a group from before groups had their tasks
        return row
    before = _registered(fact, at) if row is None else row
    after = _APPLY[move](before, fact, at)
    if after is before and row is not None:
        return row
    since_at = at if after.stage is not stage else after.since_at
    return replace(after, version=offset, move=move.value, moved_at=at, since_at=since_at)


def wants_requeue(skipped: SkippedGroup) -> bool:
    """Whether a trainer's skip asks for another run."""
    return skipped.reason in REQUEUED_REASONS


def _registered(fact: GroupEvent, at: int) -> GroupRow:
    return GroupRow(
        group_id=fact.group_id,
        task_id=fact.task_id,
        policy_id=fact.policy_id,
        harness=fact.harness,
        size=max(1, fact.size),
        priority=fact.priority,
        min_usable=fact.min_usable,
        max_requeues=fact.max_requeues,
        generation=fact.generation,
        requeue_of=fact.requeue_of,
        for_trainer=fact.for_trainer,
        metadata=labels(fact.task.get("metadata")) if isinstance(fact.task, dict) else {},
        # Its submitter's clock may be ahead, but nothing is submitted later than it stands on the log.
        submitted_at=min(fact.at or at, at),
    )


def _enter(row: GroupRow, _: GroupEvent, __: int) -> GroupRow:
    return replace(row, stage=GroupStage.WAITING)


def _admit(row: GroupRow, _: GroupEvent, __: int) -> GroupRow:
    return replace(row, stage=GroupStage.OPEN)


def _call_off(row: GroupRow, _: GroupEvent, __: int) -> GroupRow:
    return replace(row, stage=GroupStage.OPEN, is_called_off=True)


def _count(row: GroupRow, fact: GroupEvent, at: int) -> GroupRow:
    if not 0 <= fact.index < row.size or row.scored >> fact.index & 1:
        return row
    bit = 1 << fact.index
    status = str(fact.status)
    counted = replace(
        row,
        scored=row.scored | bit,
        usable=row.usable | (bit if fact.is_usable else 0),
        statuses={**row.statuses, status: row.statuses.get(status, 0) + 1},
    )
    if counted.ended == row.size:
        return replace(counted, stage=GroupStage.CLOSED)
    # A group that was called off has had its sessions cancelled already.
    if row.min_usable and not (row.stopped_at or row.is_called_off) and counted.usable_count >= row.min_usable:
        return replace(counted, stopped_at=at)
    return counted


def _requeue(row: GroupRow, fact: GroupEvent, _: int) -> GroupRow:
    trainer = fact.for_trainer
    if not trainer or trainer in row.requeued_for or row.generation >= row.max_requeues:
        return row
    if row.for_trainer not in ("", trainer) or fact.reason not in REQUEUED_REASONS:
        return row
    return replace(row, requeued_for=(*row.requeued_for, trainer))


_APPLY: Final[dict[GroupMove, Callable[[GroupRow, GroupEvent, int], GroupRow]]] = {
    GroupMove.ENTER: _enter,
    GroupMove.ADMIT: _admit,
    GroupMove.CALL_OFF: _call_off,
    GroupMove.COUNT: _count,
    GroupMove.REQUEUE: _requeue,
}
