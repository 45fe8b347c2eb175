"""Acknowledging a record only when its table writes are on the brokers, many records at a time.

Faust sends each change to the changelog at once, behind the agent's back, and its flush before a commit gives up silently after
100 ms without a sent record (and doesn't see the one in the sender's hand). A kill then loses a row whose cause is committed. So the
changes of tables are gathered here: every `GATHER_S` the last value of each changed key goes out, in one request where one broker
leads, and the records handled so far are acknowledged, in their order, once all of it is on the brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

import faust
import structlog
from faust.types import EventT

_log = structlog.get_logger(__name__)

MOST_WAITING: Final = 1000
"""Handled records that wait for their writes; the agent waits when there are more."""

GATHER_S: Final = 0.25
"""Only commits wait for changelogs, and outputs have a producer of their own: a longer wait means that more is handled again after a
kill, a shorter one that a row is written more often than anybody reads it."""

LAST_FLUSH_S: Final = 3.0
"""For the changes in hand when partitions go away: less than the group's session."""


@dataclass(frozen=True, slots=True)
class Change:
    """The last change of a key that isn't on its way yet; `value` is None for a deletion."""

    table: DurableTable
    partition: int
    key: bytes
    value: bytes | None
    is_new: bool
    """The changelog knows nothing of the key: a deletion takes the change back."""


class Acknowledger:
    """Takes handled records and the changes of tables, and acknowledges the records in their order."""

    def __init__(self, *, gather_s: float = GATHER_S) -> None:
        self._gather_s = gather_s
        self._changes: dict[tuple[str, int, bytes], Change] = {}
        self._handled: asyncio.Queue[EventT[Any]] = asyncio.Queue(MOST_WAITING)
        self._writing = asyncio.Lock()
        self._has_lost = False

    def note(self, table: DurableTable, partition: int, key: bytes, value: bytes | None, *, is_known: bool) -> None:
        """Note a change by the record in hand; `is_known`: the table had the key before."""
        place = table.name, partition, key
        # Taken out first: of different keys, what changed last is written last.
        earlier = self._changes.pop(place, None)
        is_new = earlier.is_new if earlier is not None else not is_known
        if value is not None or not is_new:
            self._changes[place] = Change(table, partition, key, value, is_new)

    async def done(self, event: EventT[Any]) -> None:
        """The record in hand is handled, all its outputs acknowledged; its changes may still be here."""
        await self._handled.put(event)

    async def flush(self) -> None:
        """Write what has changed and acknowledge what was handled until now; raises what a write raised."""
        async with self._writing:
            events = [self._handled.get_nowait() for _ in range(self._handled.qsize())]
            changes, self._changes = self._changes, {}
            # Until it is told otherwise: the tables in memory may be ahead of the changelogs for good.
            self._has_lost = True
            sent = [await change.table.send(change.partition, change.key, change.value) for change in changes.values()]
            await asyncio.gather(*sent)
            self._has_lost = False
            for event in events:
                event.ack()

    async def flush_quietly(self) -> None:
        """Flush before the partitions go away or the app stops; what can't be written in time is handled again by whoever comes next."""
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                await self.flush()
        except Exception as error:  # noqa: BLE001 - a boundary: nothing is acknowledged that isn't written
            _log.warning("changelog.unflushed", error=repr(error))

    async def run(self) -> None:
        """Acknowledge until cancelled; raises what a write raised: then the app must begin again at its commits."""
        while True:
            await asyncio.sleep(self._gather_s)
            if self._has_lost and not self._writing.locked():
                raise RuntimeError("changes of tables didn't reach their changelogs")
            if self._changes or not self._handled.empty():
                await self.flush()


class DurableTable(faust.Table):  # type: ignore[type-arg]
    """A table of raw bytes, without windows, whose changes go to an acknowledger."""

    acknowledger: Acknowledger

    def on_key_set(self, key: bytes, value: bytes) -> None:
        """A key is about to get a value."""
        self.acknowledger.note(self, self._partition(key), key, value, is_known=key in self.data)

    def on_key_del(self, key: bytes) -> None:
        """A key is about to go."""
        self.acknowledger.note(self, self._partition(key), key, None, is_known=True)

    async def send(self, partition: int, key: bytes, value: bytes | None) -> Awaitable[Any]:
        """Give one change to the producer; the result is awaited for its acknowledgement."""
        return await self.app.producer.send(self.changelog_topic.get_topic_name(), key, value, partition, None, None)

    def _partition(self, key: bytes) -> int:
        partition = self.partition_for_key(key)
        if partition is None:
            raise RuntimeError(f"table {self.name} is changed outside of its agent")
        return partition
