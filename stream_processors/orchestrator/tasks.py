"""A task becomes a group, with a deterministic id, so that a repeated task registers nothing new."""

from __future__ import annotations

from pydantic import ValidationError

from bus import PoisonError
from schemas import ids
from schemas.records import GroupEvent, GroupEventType, TaskRequest
from schemas.task import TaskSpec


def register(request: TaskRequest, at: int) -> GroupEvent:
    """The fact that registers the task's first group; raises PoisonError for a task that no worker could run."""
    try:
        task = TaskSpec.model_validate(request.spec)
    except ValidationError as error:
        raise PoisonError("invalid_task", f"task {request.task_id}: {error}") from error
    if not request.task_id or request.num_samples < 1:
        raise PoisonError("invalid_task", f"task {request.task_id!r} asks for {request.num_samples} sessions")
    return GroupEvent(
        group_id=ids.group_id(request.task_id),
        type=GroupEventType.REGISTERED,
        task_id=request.task_id,
        policy_id=request.policy_id or task.policy_id,
        harness=task.harness.name,
        size=request.num_samples,
        priority=task.priority,
        # More than there are sessions would never be reached: then all are run.
        min_usable=task.min_usable or 0,
        max_requeues=task.max_requeues,
        for_trainer=task.for_trainer,
        task=task.model_dump(mode="json"),
        at=request.submitted_at or at,
    )
