"""Records of callbacks: what was told to a task's callback URL, what waits for another try, and what was given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schemas.records.base import Record, WireEnum


class CallbackState(WireEnum):
    """How a callback stands: due for another try at `next_at`, or at one of its two ends."""

    UNKNOWN = "UNKNOWN"
    DUE = "due"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, kw_only=True)
class Callback(Record):
    """Fact: how the delivery of one result to its task's callback URL stands after `tries` tries.

    `source_partition` and `source_offset` are the place on trajectory.scored of the result that caused it.
    """

    NAME: ClassVar[str] = "callback"
    TOPIC: ClassVar[str] = "rollout.callbacks"

    delivery_id: str = ""
    task_id: str = ""
    group_id: str = ""
    session_id: str = ""
    kind: str = ""
    url: str = ""
    state: CallbackState = CallbackState.UNKNOWN
    tries: int = 0
    next_at: int = 0
    deadline_at: int = 0
    status_code: int = 0
    error: str = ""
    source_partition: int = 0
    source_offset: int = 0
    at: int = 0

    @property
    def key(self) -> str:
        """task_id: a task's callbacks stay in order."""
        return self.task_id

    @property
    def identity(self) -> tuple[object, ...]:
        """One fact per delivery, state and try."""
        return (self.delivery_id, self.state, self.tries)
