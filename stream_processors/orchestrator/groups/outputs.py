"""What a group's move causes: facts of its sessions and of groups, determined by the row after it and by the fact alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schemas import ids
from schemas.records import GroupEvent, Record, SessionEvent, SessionSpec, Stage
from schemas.records import GroupEventType as Fact
from schemas.records import SessionEventType as SessionFact
from schemas.task import TaskSpec
from stream_processors.orchestrator.groups.row import GroupRow
from stream_processors.orchestrator.groups.states import GroupMove, GroupStage


def outputs(row: GroupRow, fact: GroupEvent, registered: GroupEvent) -> list[list[Record]]:
    """The records that `fact` causes: batches in order, without an order within a batch.

    `row` is the row after it, `registered` the group's first fact.
    """
    match GroupMove(row.move):
        case GroupMove.ADMIT:
            return [list(_sessions(row, registered))]
        case GroupMove.CALL_OFF:
            return [list(_sessions(row, registered)), list(_stops(row, row.group_id, fact.reason, is_early_stop=False))]
        case GroupMove.COUNT if row.stage is GroupStage.CLOSED:
            return [[_closed(row, fact)]]
        case GroupMove.COUNT if row.stopped_at and fact.is_usable and row.usable_count == row.min_usable:
            reason = f"early stop: {row.usable_count} of {row.size} sessions are usable (min_usable {row.min_usable})"
            return [list(_stops(row, row.group_id, reason, is_early_stop=True))]
        case GroupMove.REQUEUE:
            return [[_again(row, fact, registered)], [_requeued(row, fact)]]
        case _:
            return []


def _sessions(row: GroupRow, registered: GroupEvent) -> Iterator[SessionEvent]:
    task = TaskSpec.model_validate(registered.task)
    body = task.model_dump(mode="json")
    for index in range(row.size):
        spec = SessionSpec(
            task_id=row.task_id,
            group_id=row.group_id,
            index=index,
            group_size=row.size,
            policy_id=row.policy_id,
            harness=task.harness.name,
            harness_version=task.harness.version or "",
            builder=task.builder.name,
            builder_options=task.builder.options,
            history=task.history,
            sampling=_sampling(task, index),
            requeue_of=row.requeue_of,
            for_trainer=row.for_trainer,
            metadata=task.metadata,
        )
        yield SessionEvent(
            session_id=ids.session_id(row.group_id, index),
            type=SessionFact.REGISTERED,
            group_id=row.group_id,
            task_id=row.task_id,
            spec=spec,
            task=body,
            stage=Stage.QUEUED,
            at=row.submitted_at,
        )


def _sampling(task: TaskSpec, index: int) -> dict[str, Any]:
    """What the task pins for the sample at `index`; a seed counts on from sample to sample, or all of them would be the same."""
    pinned: dict[str, Any] = task.sampling.model_dump(mode="json", exclude_none=True)
    return pinned | {"seed": pinned["seed"] + index} if "seed" in pinned else pinned


def _stops(row: GroupRow, group_id: str, reason: str, *, is_early_stop: bool) -> Iterator[SessionEvent]:
    """One cancel per session that has no result yet; a graceful one leaves alone what only waits for its grade."""
    for index in range(row.size):
        if not row.scored >> index & 1:
            yield SessionEvent(
                session_id=ids.session_id(group_id, index),
                type=SessionFact.CANCEL_REQUESTED,
                group_id=group_id,
                task_id=row.task_id,
                error=reason or "cancelled by request",
                details={"early_stop": True} if is_early_stop else {},
                at=row.moved_at,
            )


def _closed(row: GroupRow, fact: GroupEvent) -> GroupEvent:
    return GroupEvent(
        type=Fact.CLOSED,
        reason=row.close_reason,
        counts=row.counts,
        # Where a trainer has to have read to, to have seen all of it.
        partition=fact.partition,
        offset=fact.offset,
        at=row.moved_at,
        **_common(row),
    )


def _again(row: GroupRow, fact: GroupEvent, registered: GroupEvent) -> GroupEvent:
    return GroupEvent(
        group_id=ids.requeue_group_id(row.group_id, fact.for_trainer),
        type=Fact.REGISTERED,
        task_id=row.task_id,
        policy_id=row.policy_id,
        harness=row.harness,
        size=row.size,
        priority=row.priority,
        min_usable=row.min_usable,
        max_requeues=row.max_requeues,
        generation=row.generation + 1,
        requeue_of=row.group_id,
        for_trainer=fact.for_trainer,
        reason=fact.reason,
        task=registered.task,
        at=row.moved_at,
    )


def _requeued(row: GroupRow, fact: GroupEvent) -> GroupEvent:
    return GroupEvent(
        type=Fact.REQUEUED,
        reason=fact.reason,
        at=row.moved_at,
        **{**_common(row), "for_trainer": fact.for_trainer},
    )


def _common(row: GroupRow) -> dict[str, Any]:
    return {
        "group_id": row.group_id,
        "task_id": row.task_id,
        "policy_id": row.policy_id,
        "harness": row.harness,
        "size": row.size,
        "priority": row.priority,
        "generation": row.generation,
        "requeue_of": row.requeue_of,
        "for_trainer": row.for_trainer,
    }
