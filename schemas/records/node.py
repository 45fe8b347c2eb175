"""Records of the fleet: heartbeats and broadcast controls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from schemas.records.base import Json, Record, Stage, WireEnum


@dataclass(frozen=True, kw_only=True)
class Held:
    """A session that a worker holds, and in which stage."""

    session_id: str = ""
    attempt: int = 1
    round: int = 0
    lease_id: str = ""
    stage: Stage = Stage.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Heartbeat(Record):
    """Fact: a node's incarnation lives, has these free slots and holds these sessions."""

    NAME: ClassVar[str] = "heartbeat"
    TOPIC: ClassVar[str] = "rollout.nodes"

    node_id: str = ""
    role: str = ""
    incarnation: str = ""
    data_address: str = ""
    admin_address: str = ""
    free_init: int = 0
    free_ready: int = 0
    free_run: int = 0
    free_postrun: int = 0
    holds: list[Held] = field(default_factory=list)
    is_draining: bool = False
    interval_s: float = 0.0
    seq: int = 0
    details: Json = field(default_factory=dict)
    at: int = 0

    @property
    def key(self) -> str:
        """node_id."""
        return self.node_id

    @property
    def identity(self) -> tuple[object, ...]:
        """Each beat of an incarnation is a fact."""
        return (self.node_id, self.incarnation, self.seq)


class ControlAction(WireEnum):
    """What an operator, the orchestrator or a trainer asks of the fleet."""

    UNKNOWN = "UNKNOWN"
    CANCEL = "cancel"
    DRAIN = "drain"
    PAUSE = "pause"
    RESUME = "resume"
    SEAL = "seal"


@dataclass(frozen=True, kw_only=True)
class Control(Record):
    """Broadcast: `action` for `target` (a session, group, task, node or policy id, or '*').

    A pause or a drain with `for_ms` ends by itself so long after the log has it; 0: when it is resumed.
    """

    NAME: ClassVar[str] = "control"
    TOPIC: ClassVar[str] = "rollout.control"

    control_id: str = ""
    target: str = ""
    target_kind: str = "session"
    action: ControlAction = ControlAction.UNKNOWN
    lease_id: str = ""
    reason: str = ""
    issuer: str = ""
    at: int = 0
    for_ms: int = 0

    @property
    def key(self) -> str:
        """The target."""
        return self.target

    @property
    def identity(self) -> tuple[object, ...]:
        """One control per id given by its issuer."""
        return (self.control_id or (self.target, self.action, self.at),)


@dataclass(frozen=True, kw_only=True)
class BlobReference(Record):
    """Claim check: stands in for a value above the claim-check limit; the blob holds the framed value itself.

    It travels on the topic, and under the key, of the record that it stands for.
    """

    NAME: ClassVar[str] = "blob_reference"
    TOPIC: ClassVar[str] = ""

    record_name: str = ""
    url: str = ""
    sha256: str = ""
    size_bytes: int = 0
    for_topic: str = ""
    for_key: str = ""
    for_event_id: str = ""

    @property
    def topic(self) -> str:
        """The topic of the record that it stands for."""
        return self.for_topic

    @property
    def key(self) -> str:
        """The key of the record that it stands for."""
        return self.for_key

    @property
    def identity(self) -> tuple[object, ...]:
        """The record that it stands for."""
        return (self.for_event_id,)
