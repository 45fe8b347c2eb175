"""A lane's member in a Kafka consumer group, on aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    UnknownTopicOrPartitionError,
)

from bus.deliveries import Delivery
from bus.errors import BusUnavailableError, TopicMissingError
from bus.lane import RebalanceListener
from bus.partition_worker import Partition
from bus.settings import BusSettings

_log = structlog.get_logger(__name__)
_PAUSE_S = 1.0
_CLOSE_S = 10.0
_MAX_POLL_RECORDS = 256
"""For all partitions of one poll; the client keeps the rest of a fetch."""


def delivery_of(settings: BusSettings, record: Any) -> Delivery:
    """An aiokafka record as a delivery."""
    return Delivery(
        topic=settings.logical(record.topic),
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value if record.value is not None else b"",
        header_list=tuple((name, bytes(value or b"")) for name, value in record.headers),
        is_tombstone=record.value is None,
    )


async def close_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer; with the brokers gone it would wait long for an answer to its goodbye."""
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_CLOSE_S):
            await consumer.stop()
            return
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_CLOSE_S):
            await consumer._client.close()  # noqa: SLF001 - stop() won't do it twice


class KafkaGroupSource:
    """Joins, polls, commits; see `GroupSource`."""

    def __init__(self, settings: BusSettings, group: str, topics: Sequence[str]) -> None:
        self._settings = settings
        self._group = group
        self._topics = list(topics)
        self._consumer: AIOKafkaConsumer | None = None
        self._begun: set[TopicPartition] = set()
        """Partitions whose first records since the last rebalance were compared with what is committed."""

    async def open(self, listener: RebalanceListener) -> None:
        """Join the group; goes on trying while Kafka is away or a topic isn't there, and says so."""
        while True:
            # A fresh consumer each time: one that failed to start can't be started again.
            consumer = AIOKafkaConsumer(**self._settings.consumer_options(self._group))
            consumer.subscribe(
                [self._settings.physical(topic) for topic in self._topics],
                listener=_Listener(self._settings, listener, self._begun),
            )
            try:
                await consumer.start()
            except UnknownTopicOrPartitionError:
                missing = [t for t in self._topics if not consumer.partitions_for_topic(self._settings.physical(t))]
                error: Exception = TopicMissingError(missing[0] if missing else self._topics[0])
                _log.error("lane.waiting", group=self._group, error=str(error))
                await close_consumer(consumer)
            except KafkaError as failed:
                _log.warning(
                    "broker.unreachable", group=self._group, bootstrap=self._settings.bootstrap, error=repr(failed)
                )
                await close_consumer(consumer)
            except BaseException:  # a cancelled start leaves no open client either
                await close_consumer(consumer)
                raise
            else:
                self._consumer = consumer
                return
            await asyncio.sleep(_PAUSE_S)

    async def poll(self, partitions: Collection[Partition], timeout_s: float) -> Mapping[Partition, list[Delivery]]:
        """Records of these partitions. Only they are asked for, which needs no pausing (rebalances forget pauses)."""
        if self._consumer is None:
            raise BusUnavailableError("the lane's consumer isn't open")
        asked = [TopicPartition(self._settings.physical(topic), number) for topic, number in partitions]
        try:
            async with asyncio.timeout(timeout_s + 60):
                polled = await self._consumer.getmany(
                    *asked, timeout_ms=int(timeout_s * 1000), max_records=_MAX_POLL_RECORDS
                )
        except TimeoutError:
            return {}  # a rebalance takes its time; the loop looks around and comes back
        except (KafkaError, ConsumerStoppedError, IllegalStateError) as error:
            raise BusUnavailableError(f"group {self._group}: {error!r}") from error
        for tp, records in polled.items():
            if records and tp not in self._begun:
                self._begun.add(tp)
                await self._tell_what_expired(self._consumer, tp, records[0].offset)
        return {
            (self._settings.logical(tp.topic), tp.partition): [delivery_of(self._settings, r) for r in records]
            for tp, records in polled.items()
        }

    async def _tell_what_expired(self, consumer: AIOKafkaConsumer, tp: TopicPartition, first: int) -> None:
        """Count aloud what retention has taken from this group: the client itself jumps over it in silence."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                committed = await consumer.committed(tp)
                if committed is None or first <= committed:
                    return
                earliest = (await consumer.beginning_offsets([tp]))[tp]
        except (KafkaError, IllegalStateError, TimeoutError) as error:
            # The records are polled already and must reach their worker: this is a remark, not a condition.
            _log.warning("expiry.unknown", group=self._group, topic=self._settings.logical(tp.topic), error=repr(error))
            return
        if earliest > committed:  # else compaction, which leaves gaps by design
            _log.error(
                "records.expired",
                group=self._group,
                topic=self._settings.logical(tp.topic),
                partition=tp.partition,
                from_offset=committed,
                to_offset=earliest,
                count=earliest - committed,
            )

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit exactly these offsets, never "what was polled"."""
        if self._consumer is None:
            raise BusUnavailableError("the lane's consumer isn't open")
        wanted = {TopicPartition(self._settings.physical(t), n): offset for (t, n), offset in offsets.items()}
        try:
            await self._consumer.commit(wanted)
        except CommitFailedError as error:
            # The group is rebalancing: the partitions are revoked next, and what isn't committed comes again.
            _log.warning("commit.outdated", group=self._group, error=str(error).splitlines()[0])
        except (KafkaError, IllegalStateError) as error:
            raise BusUnavailableError(f"group {self._group} couldn't commit: {error!r}") from error

    def end_of(self, partition: Partition) -> int | None:
        """The high watermark of the last fetch."""
        if self._consumer is None:
            return None
        tp = TopicPartition(self._settings.physical(partition[0]), partition[1])
        if tp not in self._consumer.assignment():
            return None
        end = self._consumer.highwater(tp)
        return int(end) if end is not None else None

    async def close(self) -> None:
        """Leave the group at once, so that others needn't wait for the session to time out."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Translates names; nothing here may raise, since aiokafka would only log it."""

    def __init__(self, settings: BusSettings, listener: RebalanceListener, begun: set[TopicPartition]) -> None:
        self._settings = settings
        self._listener = listener
        self._begun = begun

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._begun.clear()
        await self._listener.revoked([(self._settings.logical(tp.topic), tp.partition) for tp in revoked])

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._listener.assigned([(self._settings.logical(tp.topic), tp.partition) for tp in assigned])
