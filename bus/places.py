"""Reading single records again where they stand: one consumer that jumps, for whoever remembers places and not values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError, OffsetOutOfRangeError

from bus.blobs import BlobStore
from bus.claims import resolve
from bus.deliveries import Delivery
from bus.errors import BusUnavailableError
from bus.group_source import close_consumer, delivery_of
from bus.settings import BusSettings
from bus.tail import open_reader

_POLL_MS: Final = 250
_TOGETHER: Final = 64
"""Records that one fetch brings: neighbours are often wanted together."""


class PlaceReader:
    """Reads records at given offsets; see `Bus.at`. One read at a time; the consumer is opened at the first one."""

    def __init__(self, settings: BusSettings, blobs: BlobStore, *, deadline_s: float = 30.0) -> None:
        self._settings = settings
        self._blobs = blobs
        self._deadline_s = deadline_s
        self._consumer: AIOKafkaConsumer | None = None
        self._lock = asyncio.Lock()

    async def read(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Delivery]:
        """The records at these offsets, by offset, resolved, without those that are gone; BusUnavailableError when late."""
        tp = TopicPartition(self._settings.physical(topic), partition)
        try:
            async with asyncio.timeout(self._deadline_s):
                async with self._lock:
                    found = await self._read(tp, sorted(set(offsets)))
                return [await resolve(delivery, self._blobs) for delivery in found]
        except TimeoutError as late:
            raise BusUnavailableError(f"{topic}[{partition}] wasn't read within {self._deadline_s:.0f} s") from late
        except (KafkaError, ConsumerStoppedError) as error:
            await self.close()  # the next read begins with a new one
            raise BusUnavailableError(f"reading {topic}[{partition}] failed: {error!r}") from error

    async def close(self) -> None:
        """Let the consumer go."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer)

    async def _read(self, tp: TopicPartition, offsets: list[int]) -> list[Delivery]:
        if self._consumer is None:
            self._consumer = await open_reader(self._settings)
        consumer = self._consumer
        consumer.assign([tp])
        first = (await consumer.beginning_offsets([tp]))[tp]
        end = (await consumer.end_offsets([tp]))[tp]
        left = [n for n in offsets if first <= n < end]
        found: list[Delivery] = []
        while left:
            consumer.seek(tp, left[0])
            wanted = set(left)
            try:
                polled = await consumer.getmany(tp, timeout_ms=_POLL_MS, max_records=_TOGETHER)
            except OffsetOutOfRangeError:  # retention was quicker
                left = left[1:]
                continue
            records = polled.get(tp, [])
            found += [delivery_of(self._settings, record) for record in records if record.offset in wanted]
            if records:  # what lies before the last one and didn't come was compacted away
                left = [n for n in left if n > records[-1].offset]
            elif await consumer.position(tp) > left[0]:
                left = left[1:]
        return found
