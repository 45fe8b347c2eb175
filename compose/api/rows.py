"""What the API remembers of tasks, groups, sessions and callbacks: where they stand, and where on the log the rest can be read."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.records import CallbackState, Stage, Status


@dataclass(slots=True)
class Result:
    """Where a session's scored trajectory stands on trajectory.scored: its newest revision, and its first one."""

    partition: int
    offset: int
    first_offset: int
    revision: int
    status: str
    reward: float | None


@dataclass(slots=True)
class SessionRow:
    """A session; `facts` are the offsets of its facts in its partition of rollout.sessions."""

    session_id: str
    task_id: str = ""
    group_id: str = ""
    index: int = 0
    policy_id: str = ""
    harness: str = ""
    stage: Stage = Stage.QUEUED
    status: Status = Status.NONE
    boundary: str = "none"
    error: str = ""
    attempt: int = 1
    lease_id: str = ""
    worker_id: str = ""
    owner: str = "worker"
    state_version: int = -1
    registered_at: int = 0
    updated_at: int = 0
    deadline_at: int = 0
    fact_partition: int = -1
    facts: array[int] = field(default_factory=lambda: array("q"))
    result: Result | None = None

    @property
    def is_ended(self) -> bool:
        """Whether its terminal fact is in."""
        return self.stage_now is Stage.ENDED

    @property
    def stage_now(self) -> Stage:
        """Its stage; a result may be read before the state that it follows from."""
        return self.stage if self.result is None else Stage.ENDED


@dataclass(slots=True)
class GroupRow:
    """A group of a task's sessions; `state` is the newest of its facts that say where it stands."""

    group_id: str
    size: int = 0
    state: str = "registered"
    reason: str = ""
    requeue_of: str = ""
    for_trainer: str = ""
    generation: int = 0
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    scored: int = 0
    """Sessions that have (had) their result; counted, since large groups are asked often."""

    @property
    def is_scored(self) -> bool:
        """Whether each of its sessions has its result."""
        return bool(self.size) and self.scored >= self.size


@dataclass(slots=True)
class CallbackRow:
    """The newest fact of one callback."""

    state: CallbackState
    tries: int
    error: str


@dataclass(slots=True)
class TaskRow:
    """A task; `digest` is of its specification as it first stood on the log ('' while only its sessions are known)."""

    task_id: str
    digest: str = ""
    policy_id: str = ""
    harness: str = ""
    num_samples: int = 0
    submitted_at: int = 0
    callback_url: str = ""
    callback_body: str = "summary"
    groups: dict[str, GroupRow] = field(default_factory=dict)
    callbacks: dict[str, CallbackRow] = field(default_factory=dict)

    def sessions(self) -> Iterator[SessionRow]:
        """All its sessions: group by group, by index."""
        for group in self.groups.values():
            yield from sorted(group.sessions.values(), key=lambda s: s.index)

    @property
    def is_ended(self) -> bool:
        """Whether each session of each of its groups has its result."""
        return bool(self.groups) and all(group.is_scored for group in self.groups.values())

    @property
    def status(self) -> str:
        """`accepted` (not taken up yet), `running` or `ended`."""
        return "ended" if self.is_ended else "running" if self.groups else "accepted"

    def stages(self) -> dict[str, int]:
        """How many sessions stand in each stage."""
        return dict(Counter(str(s.stage_now) for s in self.sessions()))
