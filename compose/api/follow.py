"""Follows topics for a view: first to their ends as they were at the start, then live, through outages, without a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

import structlog

from bus import Bus, BusRefusedError, Delivery, Start
from schemas.registry import UnknownSchemaIdError

_log = structlog.get_logger(__name__)

PAUSE_S: Final = 1.0
"""Between two looks at an outage, and at a registry that doesn't know a schema yet."""

Take = Callable[[Delivery], Awaitable[None]]
Place = tuple[str, int]


class Follower:
    """Hands each record of some topics to `take`, undecoded and unresolved, in the order of each partition, until cancelled.

    What can't be read is counted and passed over: those who act on a record set it aside, a view need not do so again at
    each start. A record of an unknown schema is waited for; `problem` says so.
    """

    def __init__(self, bus: Bus, name: str, topics: Sequence[str], take: Take, *, start: Start = "earliest") -> None:
        self._bus = bus
        self._name = name
        self._topics = topics
        self._take = take
        self._start = start
        self._next: dict[Place, int] = {}
        self._waiting: dict[Place, list[tuple[int, asyncio.Event]]] = {}
        self.caught_up = asyncio.Event()
        self.problem = ""
        self.unreadable = 0

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                if not self.caught_up.is_set():
                    await self._catch_up()
                await self._read(self._bus.tail(self._topics, start=dict(self._next), resolved=False))
            except BusRefusedError as error:
                # Retention was quicker than this reader: it goes on from what there is; what it has seen it passes over.
                _log.error("view.overtaken", view=self._name, error=str(error))
                self.caught_up.clear()
                self._start = "earliest"
            except Exception as error:  # noqa: BLE001 - the view's boundary: an outage of the log must not end the API
                _log.warning("view.interrupted", view=self._name, error=repr(error))
                self.problem = f"the log can't be read: {error!r}"
            await asyncio.sleep(PAUSE_S)

    async def wait_past(self, topic: str, partition: int, offset: int) -> None:
        """Wait until the record at this place has been taken."""
        place = (topic, partition)
        if self._next.get(place, 0) > offset:
            return
        event = asyncio.Event()
        self._waiting.setdefault(place, []).append((offset, event))
        try:
            await event.wait()
        finally:
            left = [entry for entry in self._waiting.get(place, []) if entry[1] is not event]
            self._waiting[place] = left

    async def lag(self) -> int:
        """How many records the topics hold that haven't been taken; asks Kafka."""
        behind = 0
        for topic in self._topics:
            for partition, end in (await self._bus.end_offsets(topic)).items():
                behind += max(0, end - self._next.get((topic, partition), end if self.caught_up.is_set() else 0))
        return behind

    async def _catch_up(self) -> None:
        ends = {(t, n): end for t in self._topics for n, end in (await self._bus.end_offsets(t)).items()}
        await self._read(self._bus.tail(self._topics, start=self._start, until_end=True, resolved=False))
        for place, end in ends.items():  # a partition may end in nothing: compacted or expired
            self._next[place] = max(self._next.get(place, 0), end)
        self.problem = ""
        self.caught_up.set()
        _log.info("view.caught_up", view=self._name, records=sum(self._next.values()))

    async def _read(self, tail: AsyncGenerator[Delivery, None]) -> None:
        async with aclosing(tail) as deliveries:
            async for delivery in deliveries:
                place = (delivery.topic, delivery.partition)
                if delivery.offset >= self._next.get(place, 0):
                    await self._handle(delivery)
                    self._next[place] = delivery.offset + 1
                    self._wake(place)

    async def _handle(self, delivery: Delivery) -> None:
        while True:
            try:
                await self._take(delivery)
            except UnknownSchemaIdError as error:
                if not self.problem:
                    _log.error("view.stopped", view=self._name, place=delivery.where, error=str(error))
                self.problem = f"{delivery.where}: {error}"
                await asyncio.sleep(PAUSE_S)
                continue
            except Exception as error:  # noqa: BLE001 - the record's boundary: one that can't be read is passed over
                self.unreadable += 1
                _log.warning("record.unreadable", view=self._name, place=delivery.where, error=repr(error))
            self.problem = ""
            return

    def _wake(self, place: Place) -> None:
        for offset, event in self._waiting.get(place, ()):
            if self._next[place] > offset:
                event.set()
