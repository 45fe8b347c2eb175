"""Reading trajectory.scored into the group assembler: decoding, dead letters, and what retention has taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final, Literal

import structlog

from bus import Bus
from bus.deliveries import Delivery
from bus.errors import BusRefusedError, PoisonError, is_retriable
from schemas.records import Record, ScoredTrajectory
from trainer_sink.errors import RecordsExpiredError
from trainer_sink.groups import GroupAssembler, Source
from trainer_sink.letters import SinkLetters

_log = structlog.get_logger(__name__)

Start = Literal["earliest", "latest"] | int
OnExpired = Literal["stop", "count"]
_TOPIC: Final = "trajectory.scored"


class ScoredReader:
    """Feeds one assembler from the partitions of one sink. Every record ends in the assembler or in the dead letters."""

    def __init__(
        self, bus: Bus, trainer_id: str, assembler: GroupAssembler, *, until_end: bool, on_expired: OnExpired
    ) -> None:
        self._bus = bus
        self._assembler = assembler
        self._letters = SinkLetters(bus, trainer_id)
        self._until_end = until_end
        self._on_expired = on_expired

    async def read(self, start: Start, numbers: frozenset[int]) -> AsyncIterator[None]:
        """Read partitions from the assembler's watermarks, others from `start`; yields after each record."""
        marks = self._assembler.watermarks()
        known = sorted(numbers & marks.keys())
        fresh = sorted(numbers - marks.keys())
        streams = []
        if known:
            streams.append(self._known({n: marks[n] for n in known}))
        if fresh:
            streams.append(self._bus.tail([_TOPIC], start=start, partitions=fresh, until_end=self._until_end))
        async with aclosing(_merged(streams)) as deliveries:
            async for delivery in deliveries:
                await self._take(delivery)
                yield

    async def _known(self, marks: Mapping[int, int]) -> AsyncGenerator[Delivery, None]:
        """Partitions from their watermarks on. Where retention has overtaken one, stop, or count and go on."""
        start = {(_TOPIC, n): mark for n, mark in marks.items()}
        begun = False
        try:
            async with aclosing(self._tail(start, marks)) as deliveries:
                async for delivery in deliveries:
                    begun = True
                    yield delivery
        except BusRefusedError as error:
            if begun or self._on_expired == "stop":
                raise RecordsExpiredError(
                    f"the sink can't read {_TOPIC} from {dict(marks)} on: {error}. Groups among the missing records "
                    "are lost to this trainer; to go on without them, use on_expired='count'"
                ) from error
        else:
            return
        seen: set[int] = set()
        async with aclosing(self._tail("earliest", marks)) as deliveries:
            async for delivery in deliveries:
                mark = marks[delivery.partition]
                if delivery.partition not in seen and delivery.offset > mark:
                    self._assembler.counts["expired"] += delivery.offset - mark
                    _log.warning("records.expired", partition=delivery.partition, start=mark, end=delivery.offset)
                seen.add(delivery.partition)
                if delivery.offset >= mark:
                    yield delivery

    def _tail(
        self, start: Literal["earliest"] | Mapping[tuple[str, int], int], marks: Mapping[int, int]
    ) -> AsyncGenerator[Delivery, None]:
        return self._bus.tail([_TOPIC], start=start, partitions=sorted(marks), until_end=self._until_end)

    async def _take(self, delivery: Delivery) -> None:
        source = Source(delivery.partition, delivery.offset)
        record: Record | None = None
        try:
            record = delivery.decode()
            if not isinstance(record, ScoredTrajectory):
                raise PoisonError("wrong_record", f"a {record.NAME} doesn't belong on {_TOPIC}")
            self._assembler.add(record, source)
        except Exception as error:  # the record's boundary: poison is set aside, anything retriable stops the sink
            if is_retriable(error):
                raise
            await self._letters.bury(delivery, error)
            headers = {k: v.decode("utf-8", "replace") for k, v in delivery.headers.items()}
            self._assembler.add_unreadable(headers.get("group_id", ""), headers.get("session_id", ""), source)


async def _merged(streams: list[AsyncGenerator[Delivery, None]]) -> AsyncGenerator[Delivery, None]:
    """The records of several readers, in whatever order they come."""
    waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                try:
                    delivery = task.result()
                except StopAsyncIteration:
                    continue
                yield delivery
                waiting[asyncio.ensure_future(anext(stream))] = stream
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
