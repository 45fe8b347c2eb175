"""The bus as its users see it: one interface, on Kafka (`bus.kafka`) and in memory (`bus.memory`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol, Self

from bus.blobs import BlobStore
from bus.deliveries import Delivery, Position, Start
from bus.lane import Lane
from schemas.codec import Encoded
from schemas.records import Record

Handler = Callable[[Delivery], Awaitable[None]]
"""Handles one record; returns when everything that it caused is acknowledged. See `Lane` for what its errors mean."""

Headers = Sequence[tuple[str, bytes]]


class Readable(Protocol):
    """What can be read along."""

    def tail(
        self,
        topics: Sequence[str],
        *,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        until_end: bool = False,
        resolved: bool = True,
    ) -> AsyncGenerator[Delivery, None]:
        """Read along without a group: nothing is committed, every reader sees everything.

        `until_end` stops at the end as it was at the beginning. Deliveries come undecoded, and resolved (claim checks) unless
        `resolved=False` says that headers and places are enough.
        """
        ...


class LogReader(Readable, Protocol):
    """What can be read from its beginning to its end: the log, or an archive of it."""

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset behind the last record of each partition."""
        ...


class EventLog(Readable, Protocol):
    """The log alone: publish, and read along. What a part needs that joins no consumer group."""

    async def publish(
        self, record: Record | Encoded, *, headers: Headers = (), deadline_s: float | None = None
    ) -> Position:
        """Publish a record (or its encoding) under its own topic and key; returns once it is acknowledged.

        Large values travel by claim check. An outage is waited out until the deadline, then `BusUnavailableError` is
        raised: the record may still arrive, so publish it again under the same id. Raises `TopicMissingError`,
        `BusRefusedError`, `schemas.MalformedRecordError` at once.
        """
        ...

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
        """Publish bytes as they are; a value of None is a tombstone. Raises as `publish`, and `RecordTooLargeError`."""
        ...

    async def partition_for(self, topic: str, key: bytes | str) -> int:
        """The partition to which records with this key go."""
        ...


class Bus(EventLog, LogReader, Protocol):
    """Publish, consume in a group, or read along. Topics are named as in the catalogue, without the prefix."""

    @property
    def blobs(self) -> BlobStore:
        """Where values above the claim-check limit are kept."""
        ...

    async def at(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Delivery]:
        """The records at these offsets, by offset, resolved; what retention has taken is left out.

        Raises `BusUnavailableError` when Kafka doesn't answer in time.
        """
        ...

    async def start(self) -> None:
        """Connect; raises `BusUnavailableError` after the connect deadline."""
        ...

    async def stop(self) -> None:
        """Send what is pending and disconnect."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

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
        """A consumer of the group `name`: at least once, in order within a partition, committed after handling.

        `component` names the dead-letter topics (default: `name`). `decode=False` hands records over as they stand, undecoded
        and unresolved, for consumers of raw topics and of headers.
        """
        ...
