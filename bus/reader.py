"""Reading along the log for a view: no group, through outages, with what can't be read set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from typing import Final

import structlog

from bus.dead_letters import DeadLetters
from bus.deliveries import Delivery, Start
from bus.protocol import EventLog
from schemas.records import Record
from schemas.registry import UnknownSchemaIdError

_log = structlog.get_logger(__name__)

PAUSE_S: Final = 1.0
"""Between two looks at an outage, and at a registry that doesn't know a schema yet."""

Take = Callable[[Delivery, Record | None], Awaitable[None]]
"""Gets each record once, in the order of its partition; None stands for a tombstone."""


class Reader:
    """Hands each record of some topics to `take`, in the order of each partition, until cancelled.

    A record that can't be decoded, or that `take` can't stand, goes to `<topic>.<component>.dead` and the reader goes on. A
    record of an unknown schema is waited for: the reader stops there and says so in `problems` (its name → why).
    `on_caught_up` is called once, when everything has been taken that the log held when the reader began.
    """

    def __init__(
        self,
        bus: EventLog,
        component: str,
        name: str,
        take: Take,
        *,
        topics: Sequence[str],
        start: Start,
        partitions: Sequence[int] | None = None,
        problems: MutableMapping[str, str] | None = None,
        on_interrupted: Callable[[], None] = lambda: None,
        on_caught_up: Callable[[], None] | None = None,
    ) -> None:
        self._bus = bus
        self._dead = DeadLetters(bus, component)
        self._name = name
        self._take = take
        self._topics = topics
        self._start: Start = dict(start) if isinstance(start, Mapping) else start
        self._partitions = partitions
        self._seen: dict[tuple[str, int], int] = {}
        self.problems: MutableMapping[str, str] = {} if problems is None else problems
        self._on_interrupted = on_interrupted
        self._on_caught_up = on_caught_up

    async def run(self) -> None:
        """Read until cancelled; after an outage go on where the log was left."""
        while True:
            try:
                if self._on_caught_up is not None:
                    await self._read(until_end=True)
                    tell, self._on_caught_up = self._on_caught_up, None
                    tell()
                await self._read(until_end=False)
            except Exception as error:  # noqa: BLE001 - the reader's boundary: an outage of the log must not end its owner
                _log.warning("reader.interrupted", reader=self._name, error=repr(error))
            self._on_interrupted()
            await asyncio.sleep(PAUSE_S)

    async def _read(self, *, until_end: bool) -> None:
        tail = self._bus.tail(self._topics, start=self._resume_at(), partitions=self._partitions, until_end=until_end)
        async with aclosing(tail) as deliveries:
            async for delivery in deliveries:
                await self._deliver(delivery)

    def _resume_at(self) -> Start:
        return {**self._start, **self._seen} if isinstance(self._start, Mapping) else self._start

    async def _deliver(self, delivery: Delivery) -> None:
        place = (delivery.topic, delivery.partition)
        if delivery.offset < self._seen.get(place, 0):
            return  # read before the outage
        await self._handle(delivery)
        self._seen[place] = delivery.offset + 1

    async def _handle(self, delivery: Delivery) -> None:
        while True:
            try:
                await self._take(delivery, None if delivery.is_tombstone else delivery.decode())
            except UnknownSchemaIdError as error:
                if self._name not in self.problems:
                    _log.error("reader.stopped", reader=self._name, place=delivery.where, error=str(error))
                self.problems[self._name] = f"{delivery.where}: {error}"
                await asyncio.sleep(PAUSE_S)
                continue
            except Exception as error:  # noqa: BLE001 - the record's boundary: a bad record is set aside and the rest goes on
                await self._dead.bury(delivery, error)
            self.problems.pop(self._name, None)
            return
