"""The orchestrator's row per group: where it stands, and which of its sessions have their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.records import Status
from stream_processors.orchestrator.groups.states import GroupStage


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Where a group stands. It changes only on a fact of rollout.groups, whose offset is `version`.

    `move` names what that fact did: together with the fact it determines the outputs.
    """

    group_id: str
    task_id: str = ""
    policy_id: str = ""
    harness: str = ""
    size: int = 1
    priority: int = 0
    min_usable: int = 0
    max_requeues: int = 0
    generation: int = 0
    requeue_of: str = ""
    for_trainer: str = ""
    submitted_at: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The labels of its task by which trainers choose."""

    stage: GroupStage = GroupStage.NEW
    since_at: int = 0
    scored: int = 0
    """The sessions whose results are in: bit `index` is set. A set of numbers would be written again for every one of 10,000."""
    usable: int = 0
    """The sessions whose results can be trained, as `scored`."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """How many sessions ended with each status."""
    stopped_at: int = 0
    """When it was stopped early: enough usable sessions were in."""
    is_called_off: bool = False
    """Cancelled before its admission."""
    requeued_for: tuple[str, ...] = ()
    """The trainers for which it was run again."""

    version: int = -1
    partition: int = -1
    move: str = ""
    moved_at: int = 0

    @property
    def name(self) -> str:
        """Its key in the table."""
        return self.group_id

    @property
    def is_live(self) -> bool:
        """Whether anything can still happen to it."""
        return self.stage is not GroupStage.CLOSED

    @property
    def ended(self) -> int:
        """How many sessions have their results."""
        return self.scored.bit_count()

    @property
    def usable_count(self) -> int:
        """How many of them can be trained."""
        return self.usable.bit_count()

    @property
    def names(self) -> dict[str, str]:
        """What a control may call it by, per kind of target."""
        return {"group": self.group_id, "task": self.task_id, "policy": self.policy_id}

    @property
    def close_reason(self) -> str:
        """Why it is closed: `cancelled`, `min_usable` (stopped early) or `complete`."""
        if self.is_called_off or self.statuses.get(Status.CANCELLED, 0) == self.size:
            return "cancelled"
        return "min_usable" if self.stopped_at else "complete"

    @property
    def counts(self) -> dict[str, int]:
        """Its sessions: all, with results, usable, and by status."""
        return {"size": self.size, "ended": self.ended, "usable": self.usable_count, **self.statuses}

    def to_bytes(self) -> bytes:
        """The row as the table holds it."""
        bits = {"scored": f"{self.scored:x}", "usable": f"{self.usable:x}"}  # JSON's numbers end at 64 bits
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return orjson.dumps({**fields, **bits})

    @classmethod
    def from_bytes(cls, raw: bytes) -> GroupRow:
        """The row behind a table's value."""
        data: dict[str, Any] = orjson.loads(raw)
        data["stage"] = GroupStage(data["stage"])
        data["scored"], data["usable"] = int(data["scored"], 16), int(data["usable"], 16)
        data["requeued_for"] = tuple(data["requeued_for"])
        return cls(**data)
