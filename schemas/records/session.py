"""Records of a session's life: facts, state, and the commands addressed to workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from schemas.records.base import Boundary, Json, Record, Stage, Status, WireEnum


@dataclass(frozen=True, kw_only=True)
class SessionSpec:
    """What the other parts need to know of a session's task; repeated wherever a session is introduced."""

    task_id: str = ""
    group_id: str = ""
    index: int = 0
    group_size: int = 1
    policy_id: str = ""
    harness: str = ""
    harness_version: str = ""
    builder: str = "prefix_merging"
    builder_options: Json = field(default_factory=dict)
    history: str = "sampled"
    sampling: Json = field(default_factory=dict)
    requeue_of: str = ""
    for_trainer: str = ""
    metadata: Json = field(default_factory=dict)


class SessionEventType(WireEnum):
    """What happened to a session; `ended` is its one terminal event, `forgotten` says that its retention is over."""

    UNKNOWN = "UNKNOWN"
    REGISTERED = "registered"
    INIT_ASSIGNED = "init_assigned"
    READY = "ready"
    INIT_FAILED = "init_failed"
    DECLINED = "declined"
    INIT_LOST = "init_lost"
    GRANTED = "granted"
    STARTED = "started"
    FINISHED = "finished"
    SEALED = "sealed"
    SEAL_OVERDUE = "seal_overdue"
    BUILT = "built"
    GRADED = "graded"
    LEASE_EXPIRED = "lease_expired"
    DEADLINE_HIT = "deadline_hit"
    CANCEL_REQUESTED = "cancel_requested"
    ENDED = "ended"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, kw_only=True)
class SessionEvent(Record):
    """Fact: something happened to a session.

    `round` counts assignments of one attempt to workers (from 1), so that a second INIT of the same attempt is a
    different fact. `details` names what has no field of its own (reward names, log paths, slots).
    """

    NAME: ClassVar[str] = "session_event"
    TOPIC: ClassVar[str] = "rollout.sessions"

    session_id: str = ""
    type: SessionEventType = SessionEventType.UNKNOWN
    group_id: str = ""
    task_id: str = ""
    attempt: int = 1
    round: int = 0
    lease_id: str = ""
    worker_id: str = ""
    incarnation: str = ""
    at: int = 0
    spec: SessionSpec | None = None
    task: Json = None
    owner: str = "worker"
    status: Status = Status.NONE
    boundary: Boundary = Boundary.NONE
    error: str = ""
    exit_code: int | None = None
    writers: list[int] = field(default_factory=list)
    rewards: list[str] = field(default_factory=list)
    winning_lease: str = ""
    expects_trajectory: bool = False
    expects_reward: bool = False
    deadline_at: int = 0
    stage: Stage = Stage.UNKNOWN
    details: Json = field(default_factory=dict)

    @property
    def key(self) -> str:
        """session_id."""
        return self.session_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One event of a type per attempt, round and place; each further writer of a lease has its own `started`."""
        place = (self.worker_id, self.incarnation, self.stage)
        if self.type is SessionEventType.ENDED:
            return (self.session_id, self.type)
        later = tuple(self.writers[1:]) if self.type is SessionEventType.STARTED else ()
        return (self.session_id, self.type, self.attempt, self.round, self.lease_id, *place, *later)


@dataclass(frozen=True, kw_only=True)
class SessionState(Record):
    """State: where a session stands now; a reader ignores a lower `state_version` (the causing event's offset)."""

    NAME: ClassVar[str] = "session_state"
    TOPIC: ClassVar[str] = "rollout.state"

    session_id: str = ""
    group_id: str = ""
    task_id: str = ""
    policy_id: str = ""
    harness: str = ""
    stage: Stage = Stage.UNKNOWN
    status: Status = Status.NONE
    boundary: Boundary = Boundary.NONE
    error: str = ""
    attempt: int = 1
    lease_id: str = ""
    lease_open: bool = False
    worker_id: str = ""
    incarnation: str = ""
    owner: str = "worker"
    state_version: int = -1
    updated_at: int = 0
    deadline_at: int = 0

    @property
    def key(self) -> str:
        """session_id."""
        return self.session_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One state per causing event."""
        return (self.session_id, self.state_version)


@dataclass(frozen=True, kw_only=True)
class StageCommand(Record):
    """Command to one worker's incarnation: take a session into a stage."""

    NAME: ClassVar[str] = "stage_command"
    TOPIC: ClassVar[str] = "rollout.stage.init"

    stage: Stage = Stage.UNKNOWN
    worker_id: str = ""
    incarnation: str = ""
    session_id: str = ""
    attempt: int = 1
    round: int = 0
    lease_id: str = ""
    issued_at: int = 0
    expires_at: int = 0
    deadline_at: int = 0
    spec: SessionSpec | None = None
    task: Json = None
    details: Json = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """`rollout.stage.<stage>`: RUNNING's commands stand on `.run`."""
        return f"rollout.stage.{'run' if self.stage is Stage.RUNNING else self.stage}"

    @property
    def key(self) -> str:
        """worker_id: the worker reads the partition that its id maps to."""
        return self.worker_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One command per stage, attempt, round and addressee."""
        return (self.stage, self.session_id, self.attempt, self.round, self.worker_id, self.incarnation)
