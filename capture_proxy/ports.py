"""The seams through which the proxy's core sees the outside: the part of the bus that it uses, and the clock."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from bus.deliveries import Delivery, Position, Start
from bus.protocol import Headers
from schemas.records import Record


class EventBus(Protocol):
    """What the proxy needs of the bus; `bus.Bus` has it."""

    async def publish(self, record: Record, *, headers: Headers = (), deadline_s: float | None = None) -> Position:
        """Publish a record; returns once it is acknowledged."""
        ...

    async def publish_raw(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        partition: int | None = None,
        deadline_s: float | None = None,
    ) -> Position:
        """Publish bytes as they are."""
        ...

    def tail(
        self,
        topics: Sequence[str],
        *,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        until_end: bool = False,
    ) -> AsyncGenerator[Delivery, None]:
        """Read along without a group."""
        ...


def now_ms() -> int:
    """UTC epoch milliseconds."""
    return time.time_ns() // 1_000_000
