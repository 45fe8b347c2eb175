"""Reading along the log for one worker: from given offsets, through outages, with bad records set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from bus import Bus, DeadLetters, Delivery
from schemas import UnknownSchemaIdError
from schemas.records import Record

log = structlog.get_logger(__name__)

COMPONENT = "worker"
_PAUSE_S = 1.0


@dataclass(slots=True)
class Health:
    """What keeps this worker from being healthy: reader name → why. Empty is good."""

    problems: dict[str, str] = field(default_factory=dict)


class Reader:
    """Hands each record of some topics to `take`, in the order of each partition, until cancelled.

    A record that can't be decoded, or that `take` can't stand, goes to `<topic>.worker.dead` and the reader goes on. A record of
    an unknown schema is waited for instead: the reader stops there, says so in `health`, and tries again.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        start: Mapping[tuple[str, int], int] | int,
        take: Callable[[Record], None],
        health: Health,
        *,
        topics: Sequence[str],
        partitions: Sequence[int] | None = None,
    ) -> None:
        """`start` is the next offset per (topic, partition), or a time in UTC epoch ms."""
        self._bus = bus
        self._name = name
        self._topics = topics
        self._partitions = partitions
        self._start: dict[tuple[str, int], int] | int = start if isinstance(start, int) else dict(start)
        self._take = take
        self._health = health
        self._dead = DeadLetters(bus, COMPONENT)

    async def run(self) -> None:
        """Reads until cancelled; a lost connection is reconnected."""
        while True:
            try:
                tail = self._bus.tail(self._topics, start=self._start, partitions=self._partitions)
                async with aclosing(tail) as deliveries:
                    async for delivery in deliveries:
                        await self._handle(delivery)
                        if not isinstance(self._start, int):
                            self._start[delivery.topic, delivery.partition] = delivery.offset + 1
            except Exception as error:  # noqa: BLE001  # stage boundary: an outage of the log must not end the worker
                log.warning("reader.interrupted", reader=self._name, error=str(error))
            await asyncio.sleep(_PAUSE_S)

    async def _handle(self, delivery: Delivery) -> None:
        if delivery.is_tombstone:
            return
        while True:
            try:
                record = delivery.decode()
                self._take(record)
            except UnknownSchemaIdError as error:
                if self._name not in self._health.problems:
                    log.error("reader.stopped", reader=self._name, place=delivery.where, error=str(error))  # noqa: TRY400
                self._health.problems[self._name] = f"{delivery.where}: {error}"
                await asyncio.sleep(_PAUSE_S)
                continue
            except Exception as error:  # noqa: BLE001  # record boundary: a bad record is set aside and the rest goes on
                await self._dead.bury(delivery, error)
            self._health.problems.pop(self._name, None)
            return
