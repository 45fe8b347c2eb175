"""Reading trajectory.scored into the group assembler: decoding, dead letters, and what retention has taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Final, Literal

import structlog

from bus import Bus
from bus.deliveries import Delivery
from bus.deliveries import Start as BusStart
from bus.errors import BusRefusedError, PoisonError, is_retriable
from schemas.records import Record, ScoredTrajectory
from trainer_sink.checkpoint import Anchor
from trainer_sink.errors import RecordsExpiredError
from trainer_sink.groups import GroupAssembler, Source
from trainer_sink.letters import SinkLetters

_log = structlog.get_logger(__name__)

Start = Literal["earliest", "latest"] | int
OnExpired = Literal["stop", "count"]
TOPIC: Final = "trajectory.scored"


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
        self.anchor: Anchor | None = None
        """The last record that was read: by it a checkpoint knows its log again."""

    async def read(self, start: Start, numbers: frozenset[int]) -> AsyncIterator[None]:
        """Read partitions from the assembler's watermarks, others from `start`; yields after each record."""
        marks = self._assembler.watermarks()
        known = {n: marks[n] for n in sorted(numbers & marks.keys())}
        fresh = sorted(numbers - marks.keys())
        streams = []
        if known:
            streams.append(self._patiently({(TOPIC, n): mark for n, mark in known.items()}, known, list(known)))
        if fresh:
            streams.append(self._patiently(start, {}, fresh))
        async with aclosing(_merged(streams)) as deliveries:
            async for delivery in deliveries:
                await self._take(delivery)
                yield

    async def _patiently(
        self, start: BusStart, positions: Mapping[int, int], numbers: list[int]
    ) -> AsyncGenerator[Delivery, None]:
        """Some partitions from `start` on. Where retention has overtaken one, before or while it is read: stop, or count and go on.

        `positions` are the offsets that are wanted next, where they are known.
        """
        wanted = dict(positions)
        streams = [self._tail(start, numbers)]
        while streams:
            try:
                async with aclosing(_merged(streams)) as deliveries:
                    async for delivery in deliveries:
                        mark = wanted.get(delivery.partition, delivery.offset)
                        if delivery.offset < mark:
                            continue  # taken before retention overtook another partition
                        if delivery.offset > mark:
                            self._note_expired(delivery.partition, mark, delivery.offset)
                        wanted[delivery.partition] = delivery.offset + 1
                        yield delivery
                streams = []
            except BusRefusedError as error:
                if self._on_expired == "stop":
                    raise RecordsExpiredError(
                        f"the sink can't read {TOPIC} from {wanted or start} on: {error}. Groups among the missing "
                        "records are lost to this trainer; to go on without them, use on_expired='count'"
                    ) from error
                # From the beginning as it is now: what was taken is passed over, what is gone shows as a gap.
                begun = [n for n in numbers if n in wanted]
                others = [n for n in numbers if n not in wanted]
                streams = [self._tail("earliest", begun)] if begun else []
                streams += [self._tail(start, others)] if others else []

    def _note_expired(self, partition: int, start: int, end: int) -> None:
        """Records [start, end) are gone."""
        self._assembler.counts["expired"] += end - start
        _log.warning("records.expired", partition=partition, start=start, end=end)

    def _tail(self, start: BusStart, numbers: list[int]) -> AsyncGenerator[Delivery, None]:
        return self._bus.tail([TOPIC], start=start, partitions=numbers, until_end=self._until_end)

    async def _take(self, delivery: Delivery) -> None:
        source = Source(delivery.partition, delivery.offset)
        record: Record | None = None
        if (event_id := delivery.headers.get("ce_id")) is not None:
            self.anchor = Anchor(delivery.partition, delivery.offset, event_id.decode("utf-8", "replace"))
        try:
            record = delivery.decode()
            if not isinstance(record, ScoredTrajectory):
                raise PoisonError("wrong_record", f"a {record.NAME} doesn't belong on {TOPIC}")
            self._assembler.add(record, source)
        except Exception as error:  # the record's boundary: poison is set aside, anything retriable stops the sink
            if is_retriable(error):
                raise
            await self._letters.bury(delivery, error)
            headers = {k: v.decode("utf-8", "replace") for k, v in delivery.headers.items()}
            self._assembler.add_unreadable(headers.get("group_id", ""), headers.get("session_id", ""), source)


async def _merged(streams: list[AsyncGenerator[Delivery, None]]) -> AsyncGenerator[Delivery, None]:
    """The records of several readers, in whatever order they come."""
    if len(streams) == 1:  # a task per record would cost as much as decoding it
        async with aclosing(streams[0]) as deliveries:
            async for delivery in deliveries:
                yield delivery
        return
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
