"""Records of policies (models under training) and of the trainers that read trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from schemas.records.base import Json, Record, WireEnum


class PolicyEventType(WireEnum):
    """What happened to a policy."""

    UNKNOWN = "UNKNOWN"
    CLAIMED = "claimed"
    PUBLISHED = "published"
    PAUSED = "paused"
    RESUMED = "resumed"
    ENGINE_ADDED = "engine_added"
    ENGINE_REMOVED = "engine_removed"


@dataclass(frozen=True, kw_only=True)
class PolicyEvent(Record):
    """Fact on the timeline of one policy: its weights' versions, its writer, its engines.

    `weights_path` is where a version's checkpoint lay when it was pushed, as the engines see it.
    """

    NAME: ClassVar[str] = "policy_event"
    TOPIC: ClassVar[str] = "policy.timeline"

    policy_id: str = ""
    type: PolicyEventType = PolicyEventType.UNKNOWN
    version: str = ""
    parent_version: str = ""
    weights_digest: str = ""
    trainer_id: str = ""
    trainer_epoch: int = 0
    engine_url: str = ""
    engine_kind: str = ""
    model: str = ""
    tokenizer_digest: str = ""
    reason: str = ""
    at: int = 0
    weights_path: str = ""

    @property
    def key(self) -> str:
        """policy_id."""
        return self.policy_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One event of a type per version, writer, engine and time."""
        return (self.policy_id, self.type, self.version, self.trainer_id, self.trainer_epoch, self.engine_url, self.at)


@dataclass(frozen=True, kw_only=True)
class SkippedGroup:
    """A group that a trainer didn't train, and why."""

    group_id: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class PartitionOffset:
    """The next offset to read of one partition of trajectory.scored."""

    partition: int = 0
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainerRegistered(Record):
    """Fact, repeated as a heartbeat: a trainer reads trajectories with this filter until `ttl_s` passes in silence.

    `started_at` tells a restarted trainer from one that beats again. `partitions` of trajectory.scored are what it reads (empty:
    all). `max_lag` groups may be admitted ahead of it (0: the orchestrator's own limit).
    """

    NAME: ClassVar[str] = "trainer_registered"
    TOPIC: ClassVar[str] = "trainer.consumed"

    trainer_id: str = ""
    policy_id: str = ""
    filter: Json = field(default_factory=dict)
    start: Json = None
    ttl_s: float = 60.0
    at: int = 0
    started_at: int = 0
    partitions: list[int] = field(default_factory=list)
    max_lag: int = 0

    @property
    def key(self) -> str:
        """trainer_id."""
        return self.trainer_id

    @property
    def identity(self) -> tuple[object, ...]:
        """Each beat is a fact."""
        return (self.trainer_id, self.at)


@dataclass(frozen=True, kw_only=True)
class BatchConsumed(Record):
    """Fact: a trainer has trained these groups in this step; publishing it again changes nothing.

    `is_interim`: no step at all, only skips that a trainer reports while it waits for something to train; `step` is its last one.
    """

    NAME: ClassVar[str] = "batch_consumed"
    TOPIC: ClassVar[str] = "trainer.consumed"

    trainer_id: str = ""
    step: int = 0
    policy_id: str = ""
    policy_version: str = ""
    groups: list[str] = field(default_factory=list)
    skipped: list[SkippedGroup] = field(default_factory=list)
    offsets: list[PartitionOffset] = field(default_factory=list)
    staleness_max: float = 0.0
    staleness_mean: float = 0.0
    details: Json = field(default_factory=dict)
    at: int = 0
    is_interim: bool = False

    @property
    def key(self) -> str:
        """trainer_id."""
        return self.trainer_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One batch per step of a trainer; what is reported between two steps is a fact of its own each time."""
        return (self.trainer_id, self.step, self.at) if self.is_interim else (self.trainer_id, self.step)
