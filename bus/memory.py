"""The bus in memory: the same interface, the same lanes, the same codec and partitioner, no broker. For tests.

Everything lives in one object of one process. What differs from Kafka: nothing is durable, retention and compaction don't
happen, and an outage is something a test asks for (`outage`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

from bus.blobs import BlobStore, blob_key, open_store
from bus.claims import check_in, resolve
from bus.dead_letters import DeadLetters
from bus.deliveries import Delivery, Position, Start
from bus.errors import BlobCorruptError, BlobMissingError, BusUnavailableError, RecordTooLargeError, TopicMissingError
from bus.handling import RecordHandling
from bus.lane import Lane
from bus.memory_groups import Group, MemoryGroupSource
from bus.partition_worker import Partition
from bus.producer import partitioner
from bus.protocol import Handler, Headers
from bus.settings import MAX_RECORD_BYTES
from schemas.codec import Encoded
from schemas.records import Record
from schemas.topics import TOPICS, Topic, dead_letter_topics


class MemoryBlobStore:
    """Blobs in a dictionary, checked like any other."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    async def put(self, owner: str, data: bytes) -> str:
        """See `BlobStore.put`."""
        url = f"mem://{blob_key(owner, data)}"
        self.blobs[url] = data
        return url

    async def get(self, url: str) -> bytes:
        """See `BlobStore.get`."""
        if url not in self.blobs:
            raise BlobMissingError(f"blob {url} isn't there")
        data = self.blobs[url]
        if hashlib.sha256(data).hexdigest() != url.rpartition("/")[2]:
            raise BlobCorruptError(f"blob {url} isn't what its name says")
        return data


class MemoryBus:
    """A whole cluster for one process; see `Bus` for what each method promises."""

    def __init__(
        self,
        *,
        partitions: int | None = None,
        blob_url: str | None = None,
        topics: Sequence[Topic] = (),
        publish_deadline_s: float = 60.0,
    ) -> None:
        """The catalogue's topics, their dead letters and `topics` exist; `partitions` overrides their number."""
        self._blobs: BlobStore = open_store(blob_url) if blob_url else MemoryBlobStore()
        self._partitions = partitions
        self._deadline_s = publish_deadline_s
        self._logs: dict[str, list[list[Delivery]]] = {}
        self._groups: dict[str, Group] = {}
        self._appended = asyncio.Condition()
        self._is_up = asyncio.Event()
        for topic in [*TOPICS.values(), *dead_letter_topics(), *topics]:
            self.declare(topic)

    # -- for tests ---------------------------------------------------------------------------------------------------

    def declare(self, topic: Topic) -> None:
        """Create a topic; one that exists keeps its records."""
        self._logs.setdefault(topic.name, [[] for _ in range(self._partitions or topic.partitions)])

    def records(self, topic: str) -> list[Delivery]:
        """Everything on a topic, partition by partition, unresolved."""
        return [delivery for log in self._log(topic) for delivery in log]

    def committed(self, group: str) -> dict[Partition, int]:
        """What a group has committed: the next offset of each partition."""
        return dict(self._groups[group].committed) if group in self._groups else {}

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """No broker answers while this lasts: publishes wait, lanes and readers get nothing."""
        self._is_up.clear()
        try:
            yield
        finally:
            self._is_up.set()
            await self.wake()

    async def wake(self) -> None:
        """Let everyone who waits for records look again."""
        async with self._appended:
            self._appended.notify_all()

    # -- the interface -----------------------------------------------------------------------------------------------

    @property
    def blobs(self) -> BlobStore:
        """Where values above the claim-check limit are kept."""
        return self._blobs

    async def start(self) -> None:
        """Come up."""
        self._is_up.set()

    async def stop(self) -> None:
        """Go away; the records stay."""
        self._is_up.clear()

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
        await self._wait_up(f"a record for {topic}", self._deadline_s if deadline_s is None else deadline_s)
        log = self._log(topic)
        if len(value or b"") + len(key or b"") > MAX_RECORD_BYTES:
            raise RecordTooLargeError(
                f"a record for {topic} is above the limit of {MAX_RECORD_BYTES} bytes for raw values"
            )
        numbers = list(range(len(log)))
        number = partitioner(key, numbers, numbers) if partition is None else partition
        delivery = Delivery(
            topic=topic,
            partition=number,
            offset=len(log[number]),
            timestamp_ms=time.time_ns() // 1_000_000,
            key=key,
            value=value or b"",
            header_list=tuple(headers),
            is_tombstone=value is None,
        )
        log[number].append(delivery)
        await self.wake()
        return delivery.position

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
        group = self._groups.setdefault(name, Group(self))
        return Lane(name, MemoryGroupSource(group, topics), handling)

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
        wanted = [(topic, n) for topic in topics for n in _chosen(partitions, len(self._log(topic)))]
        end = {(topic, n): len(self._log(topic)[n]) for topic, n in wanted}
        at = {p: self._start_of(p, start, end[p]) for p in wanted}
        while True:
            await self._is_up.wait()
            moved = False
            for topic, n in wanted:
                limit = end[topic, n] if until_end else len(self._log(topic)[n])
                while at[topic, n] < limit:
                    delivery = self._log(topic)[n][at[topic, n]]
                    at[topic, n] += 1
                    moved = True
                    yield await resolve(delivery, self._blobs) if resolved else delivery
            if until_end and all(at[p] >= end[p] for p in wanted):
                return
            if not moved:
                async with self._appended:
                    await self._appended.wait()

    async def at(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Delivery]:
        """See `Bus.at`."""
        await self._wait_up(f"a look at {topic}", self._deadline_s)
        log = self._log(topic)[partition]
        return [await resolve(log[n], self._blobs) for n in sorted(set(offsets)) if 0 <= n < len(log)]

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """See `Bus.end_offsets`."""
        return {n: len(log) for n, log in enumerate(self._log(topic))}

    async def partition_for(self, topic: str, key: bytes | str) -> int:
        """See `Bus.partition_for`."""
        numbers = list(range(len(self._log(topic))))
        return int(partitioner(key.encode() if isinstance(key, str) else key, numbers, numbers))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _log(self, topic: str) -> list[list[Delivery]]:
        if topic not in self._logs:
            raise TopicMissingError(topic)
        return self._logs[topic]

    def _start_of(self, partition: Partition, start: Start, end: int) -> int:
        if start == "earliest":
            return 0
        if start == "latest":
            return end
        if isinstance(start, int):
            log = self._log(partition[0])[partition[1]]
            return next((d.offset for d in log if d.timestamp_ms >= start), end)
        if isinstance(start, Mapping):
            return start.get(partition, 0)
        raise ValueError(
            f"start must be 'earliest', 'latest', epoch ms or offsets by (topic, partition), not {start!r}"
        )

    async def _wait_up(self, what: str, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await self._is_up.wait()
        except TimeoutError as late:
            raise BusUnavailableError(f"the bus in memory is down: {what} wasn't taken within {deadline_s} s") from late

    def end_of(self, partition: Partition) -> int:
        """For lanes: the next offset of one partition."""
        return len(self._log(partition[0])[partition[1]])

    async def fetch(self, offsets: Mapping[Partition, int], timeout_s: float) -> dict[Partition, list[Delivery]]:
        """For lanes: what lies at and after these offsets, or nothing after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self._is_up.wait()
                    found = {p: self._log(p[0])[p[1]][at:] for p, at in offsets.items()}
                    if any(found.values()):
                        return found
                    async with self._appended:
                        await self._appended.wait()
        except TimeoutError:
            return {}


def _chosen(partitions: Sequence[int] | None, count: int) -> Sequence[int]:
    return range(count) if partitions is None else partitions
