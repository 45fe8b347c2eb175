"""Records of tasks and groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from schemas.records.base import Json, Record, Status, WireEnum


@dataclass(frozen=True, kw_only=True)
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
    """What happened to a group; `closed` is its end, `forgotten` says that its retention is over."""

    UNKNOWN = "UNKNOWN"
    REGISTERED = "registered"
    ADMITTED = "admitted"
    CANCEL_REQUESTED = "cancel_requested"
    SCORED = "scored"
    REQUEUE_REQUESTED = "requeue_requested"
    REQUEUED = "requeued"
    CLOSED = "closed"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, kw_only=True)
class GroupEvent(Record):
    """Fact: something happened to a group of sessions.

    `registered` carries the task and the group's wishes; `generation` counts how often it was re-queued. `scored` names one
    session (`index`), how it ended and where its result stands on trajectory.scored (`partition`, `offset`). `closed` has the
    counts of all its sessions, and the place of the last result.
    """

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
    harness: str = ""
    priority: int = 0
    min_usable: int = 0
    """So many usable sessions are enough, the others are stopped; 0: all are run."""
    max_requeues: int = 0
    generation: int = 0
    task: Json = None
    session_id: str = ""
    index: int = 0
    status: Status = Status.NONE
    is_usable: bool = False
    partition: int = -1
    offset: int = -1
    counts: Json = field(default_factory=dict)
    metadata: Json = field(default_factory=dict)
    """The labels of the task by which trainers choose (`schemas.wishes.labels`)."""

    @property
    def key(self) -> str:
        """group_id."""
        return self.group_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One event of a type per group, and per session or trainer where it is about one."""
        about = tuple(name for name in (self.session_id, self.for_trainer if self._is_of_trainer else "") if name)
        return (self.group_id, self.type, *about)

    @property
    def _is_of_trainer(self) -> bool:
        return self.type in (GroupEventType.REQUEUE_REQUESTED, GroupEventType.REQUEUED)
