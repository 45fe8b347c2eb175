"""The bus on Kafka: the producer, lanes and readers of one process, behind the `Bus` interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Self

from aiokafka import AIOKafkaConsumer

from bus.blobs import BlobStore, open_store
from bus.claims import check_in
from bus.dead_letters import DeadLetters
from bus.deliveries import Delivery, Position, Start
from bus.group_source import KafkaGroupSource, close_consumer
from bus.handling import RecordHandling
from bus.lane import Lane
from bus.places import PlaceReader
from bus.producer import Producer
from bus.protocol import Handler, Headers
from bus.settings import BusSettings
from bus.tail import end_offsets, open_reader, read
from schemas.codec import Encoded
from schemas.records import Record


class KafkaBus:
    """One process's bus; see `Bus` for what each method promises."""

    def __init__(self, settings: BusSettings) -> None:
        self.settings = settings
        self._blobs = open_store(settings.blob_url)
        self._producer = Producer(settings)
        self._reader: AIOKafkaConsumer | None = None
        self._opening_reader = asyncio.Lock()
        self._places = PlaceReader(settings, self._blobs)

    @property
    def blobs(self) -> BlobStore:
        """Where values above the claim-check limit are kept."""
        return self._blobs

    async def start(self) -> None:
        """Connect; raises `BusUnavailableError` after the connect deadline."""
        await self._producer.start()

    async def stop(self) -> None:
        """Send what is pending and disconnect. Stop lanes and close tails first."""
        await self._producer.stop()
        await self._places.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            await close_consumer(reader)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def publish(
        self, record: Record | Encoded, *, headers: Headers = (), deadline_s: float | None = None
    ) -> Position:
        """See `Bus.publish`."""
        encoded = await check_in(record, self._blobs)
        return await self.publish_raw(
            encoded.topic, encoded.key, encoded.value, [*encoded.headers, *headers], deadline_s=deadline_s
        )

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
        """See `Bus.publish_raw`."""
        return await self._producer.send(topic, key, value, headers, partition=partition, deadline_s=deadline_s)

    def lane(
        self,
        name: str,
        topics: Sequence[str],
        handler: Handler,
        *,
        dead_letter: bool = True,
        component: str | None = None,
        decode: bool = True,
    ) -> Lane:
        """See `Bus.lane`."""
        letters = DeadLetters(self, component or name) if dead_letter else None
        handling = RecordHandling(handler, self._blobs, letters, decode=decode)
        return Lane(name, KafkaGroupSource(self.settings, name, topics), handling)

    async def tail(
        self,
        topics: Sequence[str],
        *,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        until_end: bool = False,
        resolved: bool = True,
    ) -> AsyncGenerator[Delivery, None]:
        """See `Bus.tail`."""
        wanted = {
            topic: await self._producer.partitions(topic) if partitions is None else partitions for topic in topics
        }
        async for delivery in read(self.settings, self._blobs, wanted, start, until_end=until_end, resolved=resolved):
            yield delivery

    async def at(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Delivery]:
        """See `Bus.at`."""
        return await self._places.read(topic, partition, offsets)

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """The ends of a topic; see `Bus.end_offsets`."""
        numbers = await self._producer.partitions(topic)
        async with self._opening_reader:
            if self._reader is None:
                self._reader = await open_reader(self.settings)
        return await end_offsets(self.settings, self._reader, topic, numbers)

    async def partition_for(self, topic: str, key: bytes | str) -> int:
        """The partition of a key; see `Bus.partition_for`."""
        return await self._producer.partition_for(topic, key.encode() if isinstance(key, str) else key)


def connect(settings: BusSettings) -> KafkaBus:
    """Make a bus on Kafka. It isn't started yet: use it with `async with`."""
    return KafkaBus(settings)
