"""Acknowledging a record only when its table writes are on the brokers.

Faust sends changelog records behind the agent's back, and its flush before a commit gives up silently after 100 ms without a
sent record (and doesn't see the one in the sender's hand). A kill then loses a row whose cause is committed. So each write's
acknowledgement is waited for here, outside the agent, which goes on meanwhile; records are acknowledged in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import faust
from faust.types import EventT

MOST_WAITING: Final = 1000
"""Handled records that wait for their writes; the agent waits when there are more."""


class Acknowledger:
    """Takes handled records with their writes, in order, and acknowledges them in that order."""

    def __init__(self) -> None:
        self._writes: list[Awaitable[Any]] = []
        self._handled: asyncio.Queue[tuple[EventT[Any], list[Awaitable[Any]]]] = asyncio.Queue(MOST_WAITING)

    def note(self, write: Awaitable[Any]) -> None:
        """Note a write of the record in hand."""
        self._writes.append(write)

    async def done(self, event: EventT[Any]) -> None:
        """The record in hand is handled, all its outputs acknowledged; its writes may still be on their way."""
        writes, self._writes = self._writes, []
        await self._handled.put((event, writes))

    async def run(self) -> None:
        """Acknowledge until cancelled; raises what a write raised: then the app must begin again at its commits."""
        while True:
            event, writes = await self._handled.get()
            for write in writes:
                await write
            event.ack()


class DurableTable(faust.Table):  # type: ignore[type-arg]
    """A table whose writes are noted at an acknowledger."""

    acknowledger: Acknowledger | None = None

    def send_changelog(self, *args: Any, **kwargs: Any) -> Any:
        """Send one write to the changelog and note it."""
        write = super().send_changelog(*args, **kwargs)
        if self.acknowledger is not None:
            self.acknowledger.note(write)
        return write
