"""The producer: idempotent, patient through outages, and replaced when the client has given up for good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerClosed,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.partitioner import DefaultPartitioner

from bus.deliveries import Position
from bus.errors import BusRefusedError, BusUnavailableError, RecordTooLargeError, TopicMissingError
from bus.settings import MAX_RECORD_BYTES, BusSettings

_log = structlog.get_logger(__name__)
_PAUSE_S = 0.5
"""Between tries that failed at once; the client itself waits between tries at a broker."""

_CLOSE_S = 10.0
"""To send what is pending when stopping; with the brokers gone it would take for ever."""

_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)

partitioner = DefaultPartitioner()
"""Java's murmur2, as every Kafka client's default should be: the same key meets the same partition from any writer."""


class Producer:
    """Sends bytes and waits for the acknowledgement of all in-sync replicas.

    The client retries a batch for as long as the brokers are away and its sequence numbers keep retries from repeating.
    What it can't survive (the broker forgot the producer, a sequence that no longer fits) is answered with a new client,
    and the record is sent again: at least once, never lost in silence.
    """

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings
        self._client: AIOKafkaProducer | None = None
        self._replacing = asyncio.Lock()
        self._is_stopped = True

    async def start(self) -> None:
        """Connect; raises `BusUnavailableError` after the connect deadline."""
        self._is_stopped = False
        try:
            async with asyncio.timeout(self._settings.connect_deadline_s):
                await self._connected()
        except TimeoutError as late:
            raise BusUnavailableError(
                f"no Kafka at {self._settings.bootstrap} within {self._settings.connect_deadline_s:.0f} s: "
                "see whether it runs (`polynya doctor`) and whether POLYNYA_BOOTSTRAP names it"
            ) from late

    async def stop(self) -> None:
        """Send what is pending, within ten seconds, and disconnect."""
        self._is_stopped = True
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        *,
        partition: int | None = None,
        deadline_s: float | None = None,
    ) -> Position:
        """Send one record to a topic of the catalogue; see `Bus.publish_raw` for what is raised."""
        limit_s = self._settings.publish_deadline_s if deadline_s is None else deadline_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._send(topic, key, value, headers, partition)
        except TimeoutError as late:
            raise BusUnavailableError(
                f"Kafka at {self._settings.bootstrap} didn't acknowledge a record for {topic} within {limit_s:.0f} s; "
                "it may still arrive"
            ) from late

    async def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic, sorted; raises `TopicMissingError` or `BusUnavailableError`."""
        try:
            async with asyncio.timeout(self._settings.connect_deadline_s):
                while True:
                    client = await self._connected()
                    await self._find_topic(client, topic)
                    try:
                        return sorted(await client.partitions_for(self._settings.physical(topic)))
                    except KafkaError:
                        await asyncio.sleep(_PAUSE_S)
        except TimeoutError as late:
            raise BusUnavailableError(
                f"Kafka at {self._settings.bootstrap} didn't say what {topic} consists of"
            ) from late

    async def partition_for(self, topic: str, key: bytes) -> int:
        """The partition of a key."""
        partitions = await self.partitions(topic)
        return int(partitioner(key, partitions, partitions))

    async def _send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        partition: int | None,
    ) -> Position:
        physical = self._settings.physical(topic)
        while True:
            client = await self._connected()
            try:
                await self._find_topic(client, topic)
                pending = await client.send(physical, value=value, key=key, partition=partition, headers=list(headers))
                sent = await pending
                return Position(topic, sent.partition, sent.offset)
            except _TOO_LARGE as error:
                size = len(value or b"") + len(key or b"")
                raise RecordTooLargeError(
                    f"a record of {size} bytes for {topic} is above the limit of {MAX_RECORD_BYTES} bytes for raw values"
                ) from error
            except (UnknownTopicOrPartitionError, KafkaTimeoutError) as error:
                _log.warning("publish.delayed", topic=topic, error=repr(error))
                await asyncio.sleep(_PAUSE_S)
            except KafkaError as error:
                if self._is_stopped:
                    raise BusUnavailableError(
                        f"the bus was stopped before a record for {topic} was acknowledged"
                    ) from error
                if _is_refusal(error):
                    raise BusRefusedError(f"Kafka refused a record for {topic}: {error!r}") from error
                _log.warning("publish.delayed", topic=topic, error=repr(error))
                if not error.retriable:
                    await self._replace(client)
                await asyncio.sleep(_PAUSE_S)

    async def _connected(self) -> AIOKafkaProducer:
        """The client, connected; tries for ever, so callers bring a deadline."""
        while True:
            if self._is_stopped:
                raise BusUnavailableError("the bus isn't started, or was stopped: use `async with bus`")
            async with self._replacing:
                if self._client is not None:
                    return self._client
                client = AIOKafkaProducer(**self._settings.producer_options())
                try:
                    await client.start()
                except KafkaError as error:
                    await _close(client)
                    _log.warning("broker.unreachable", bootstrap=self._settings.bootstrap, error=repr(error))
                except BaseException:  # a cancelled start leaves no open client either
                    await _close(client)
                    raise
                else:
                    self._client = client
                    return client
            await asyncio.sleep(_PAUSE_S)

    async def _replace(self, broken: AIOKafkaProducer) -> None:
        async with self._replacing:
            if self._client is broken:
                _log.warning("producer.replaced")
                self._client = None
                await _close(broken)

    async def _find_topic(self, client: AIOKafkaProducer, topic: str) -> None:
        """Raise `TopicMissingError` when the cluster answers and the topic isn't there; return when that can't be said.

        The client alone would ask for 15 s. Two answers are needed: the first may be to a question that was under way
        already, or from a broker that hasn't heard yet of a topic made a moment ago.
        """
        physical, cluster = self._settings.physical(topic), client.client.cluster
        if cluster.partitions_for_topic(physical) is not None:
            return
        client.client.add_topic(physical)
        for pause_s in (0.0, _PAUSE_S):
            await asyncio.sleep(pause_s)
            try:
                has_answer = await client.client.force_metadata_update()
            except KafkaError:
                return
            if not has_answer or cluster.partitions_for_topic(physical) is not None:
                return
        raise TopicMissingError(topic)


def _is_refusal(error: KafkaError) -> bool:
    """Whether the broker said no to us, not to this producer's state."""
    refusals = {for_code(code) for code in (17, 29, 31, 44, 87)}  # topic, authorisations, policy, invalid record
    return type(error) in refusals


async def _close(client: AIOKafkaProducer) -> None:
    with contextlib.suppress(TimeoutError, KafkaError, ProducerClosed):
        async with asyncio.timeout(_CLOSE_S):
            await client.stop()
            return
    # The client counts itself closed already; its connections still have to go.
    with contextlib.suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_CLOSE_S):
            await client._sender.close()  # noqa: SLF001 - there is no public way to give up
            await client.client.close()
