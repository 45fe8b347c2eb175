"""Records of tasks and groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from schemas.records.base import Json, Record, WireEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest(Record):
    """Command: run one task `num_samples` times; `spec` is a validated TaskSpec in JSON form."""

    NAME: ClassVar[str] = "task_request"
    TOPIC: ClassVar[str] = "rollout.tasks"

    task_id: str = ""
    policy_id: str = ""
    harness: str = ""
    instruction: str = ""
    num_samples: int = 1
    priority: int = 0
    submitted_at: int = 0
    spec: Json = field(default_factory=dict)

    @property
    def key(self) -> str:
        """task_id."""
        return self.task_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One request per task id."""
        return (self.task_id,)


class GroupEventType(WireEnum):
    """What happened to a group."""

    UNKNOWN = "UNKNOWN"
    REGISTERED = "registered"
    ADMITTED = "admitted"
    REQUEUED = "requeued"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvent(Record):
    """Fact: something happened to a group of sessions."""

    NAME: ClassVar[str] = "group_event"
    TOPIC: ClassVar[str] = "rollout.groups"

    group_id: str = ""
    type: GroupEventType = GroupEventType.UNKNOWN
    task_id: str = ""
    policy_id: str = ""
    size: int = 0
    requeue_of: str = ""
    for_trainer: str = ""
    reason: str = ""
    at: int = 0

    @property
    def key(self) -> str:
        """group_id."""
        return self.group_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One event of a type per group."""
        return (self.group_id, self.type)
