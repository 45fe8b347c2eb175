"""A task becomes a group of registered sessions: pure, with deterministic ids, so that a repeated task registers nothing new."""

from __future__ import annotations

from pydantic import ValidationError

from bus import PoisonError
from schemas import ids
from schemas.records import (
    GroupEvent,
    GroupEventType,
    Record,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    Stage,
    TaskRequest,
)
from schemas.task import TaskSpec


def register(request: TaskRequest, at: int) -> list[Record]:
    """The group's fact, then one `registered` per session; raises PoisonError for a task that no worker could run."""
    try:
        task = TaskSpec.model_validate(request.spec)
    except ValidationError as error:
        raise PoisonError("invalid_task", f"task {request.task_id}: {error}") from error
    if not request.task_id or request.num_samples < 1:
        raise PoisonError("invalid_task", f"task {request.task_id!r} asks for {request.num_samples} sessions")
    group_id = ids.group_id(request.task_id)
    policy_id = request.policy_id or task.policy_id
    submitted_at = request.submitted_at or at
    records: list[Record] = [
        GroupEvent(
            group_id=group_id,
            type=GroupEventType.REGISTERED,
            task_id=request.task_id,
            policy_id=policy_id,
            size=request.num_samples,
            at=submitted_at,
        )
    ]
    body = task.model_dump(mode="json")
    for index in range(request.num_samples):
        spec = SessionSpec(
            task_id=request.task_id,
            group_id=group_id,
            index=index,
            group_size=request.num_samples,
            policy_id=policy_id,
            harness=task.harness.name,
            harness_version=task.harness.version or "",
            builder=task.builder.name,
            builder_options=task.builder.options,
            history=task.history,
            sampling=task.sampling.model_dump(mode="json", exclude_none=True),
            metadata=task.metadata,
        )
        records.append(
            SessionEvent(
                session_id=ids.session_id(group_id, index),
                type=SessionEventType.REGISTERED,
                group_id=group_id,
                task_id=request.task_id,
                spec=spec,
                task=body,
                stage=Stage.QUEUED,
                at=submitted_at,
            )
        )
    return records
