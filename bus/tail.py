"""Readers without a group: they choose their partitions and offsets, commit nothing, and see everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Any, Final, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError, OffsetOutOfRangeError

from bus.blobs import BlobStore
from bus.claims import resolve
from bus.deliveries import Delivery, Start
from bus.errors import BlobStoreUnavailableError, BusRefusedError, BusUnavailableError
from bus.group_source import close_consumer, delivery_of
from bus.pace import Pace
from bus.settings import BusSettings

_log = structlog.get_logger(__name__)
_POLL_RECORDS: Final = 500
_POLLS_AHEAD: Final = 4
_UNTIL_END_WAIT_MS: Final = 250
_PAUSE_S: Final = 0.5

T = TypeVar("T")


async def open_reader(settings: BusSettings) -> AIOKafkaConsumer:
    """A started consumer without a group; raises `BusUnavailableError` after the connect deadline."""
    try:
        async with asyncio.timeout(settings.connect_deadline_s):
            while True:
                consumer = AIOKafkaConsumer(**settings.reader_options())
                try:
                    await consumer.start()
                except KafkaError as error:
                    await close_consumer(consumer)
                    _log.warning("broker.unreachable", bootstrap=settings.bootstrap, error=repr(error))
                    await asyncio.sleep(_PAUSE_S)
                except BaseException:  # a cancelled start leaves no open client either
                    await close_consumer(consumer)
                    raise
                else:
                    return consumer
    except TimeoutError as late:
        raise BusUnavailableError(
            f"no Kafka at {settings.bootstrap} within {settings.connect_deadline_s:.0f} s: see whether it runs"
        ) from late


async def read(
    settings: BusSettings,
    blobs: BlobStore,
    partitions: Mapping[str, Sequence[int]],
    start: Start,
    *,
    until_end: bool,
    resolved: bool = True,
) -> AsyncGenerator[Delivery, None]:
    """Yield the records of these partitions from `start` on; see `Bus.tail`. Offsets that retention took are an error."""
    if until_end:
        # Nothing is waited for, except by a fetch that leaves out a partition whose records aren't taken yet.
        settings = settings.model_copy(update={"fetch_wait_ms": min(settings.fetch_wait_ms, _UNTIL_END_WAIT_MS)})
    consumer = await open_reader(settings)
    try:
        tps = [TopicPartition(settings.physical(t), n) for t, numbers in partitions.items() for n in numbers]
        consumer.assign(tps)
        begin, end = await _bounds(settings, consumer, tps, start)
        for tp, offset in begin.items():
            consumer.seek(tp, offset)
        polls = _to_end(settings, consumer, begin, end) if until_end else _followed(settings, consumer, set(tps))
        async with aclosing(polls):
            async for records in polls:
                for record in records:
                    delivery = delivery_of(settings, record)
                    yield await resolved_patiently(delivery, blobs) if resolved else delivery
    finally:
        await close_consumer(consumer)


async def _to_end(
    settings: BusSettings,
    consumer: AIOKafkaConsumer,
    begin: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> AsyncGenerator[list[Any], None]:
    """What stands between these offsets, poll by poll."""
    left = {tp for tp in begin if begin[tp] < end[tp]}
    while left:
        polled = await _poll(settings, consumer, left)
        yield [record for tp, records in polled.items() for record in records if record.offset < end[tp]]
        # The position, not the last record: compaction may have taken the record before the end.
        left = {tp for tp in left if await consumer.position(tp) < end[tp]}


async def _followed(
    settings: BusSettings, consumer: AIOKafkaConsumer, tps: set[TopicPartition]
) -> AsyncGenerator[list[Any], None]:
    """What comes, for ever, polled while the reader has earlier records in hand.

    The client leaves a partition out of its fetch when records of it haven't been taken for a while; what comes there meanwhile
    would wait until that fetch ends.
    """
    ahead: asyncio.Queue[list[Any] | BaseException] = asyncio.Queue(_POLLS_AHEAD)

    async def poll() -> None:
        pace = Pace()
        try:
            while True:
                await pace.wait()
                polled = await _poll(settings, consumer, tps)
                pace.took(bool(polled))
                if polled:
                    await ahead.put(list(chain.from_iterable(polled.values())))
        except Exception as error:  # noqa: BLE001 - a boundary between tasks: the reader gets it
            await ahead.put(error)

    polling = asyncio.create_task(poll())
    try:
        while True:
            polled = await ahead.get()
            if isinstance(polled, BaseException):
                raise polled
            yield polled
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def end_offsets(
    settings: BusSettings, consumer: AIOKafkaConsumer, topic: str, numbers: Sequence[int]
) -> dict[int, int]:
    """The next offset of each partition of a topic; waits out an outage until the connect deadline."""
    tps = [TopicPartition(settings.physical(topic), n) for n in numbers]
    ends = await _patiently(settings, lambda: consumer.end_offsets(tps))
    return {tp.partition: offset for tp, offset in ends.items()}


async def _bounds(
    settings: BusSettings, consumer: AIOKafkaConsumer, tps: Sequence[TopicPartition], start: Start
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where to begin and where the end was when asked."""
    end = await _patiently(settings, lambda: consumer.end_offsets(tps))
    if start == "latest":
        return end, end
    if start == "earliest":
        return await _patiently(settings, lambda: consumer.beginning_offsets(tps)), end
    if isinstance(start, int):
        found = await _patiently(settings, lambda: consumer.offsets_for_times(dict.fromkeys(tps, start)))
        return {tp: found[tp].offset if found.get(tp) is not None else end[tp] for tp in tps}, end
    if isinstance(start, Mapping):
        earliest = await _patiently(settings, lambda: consumer.beginning_offsets(tps))
        wanted = {tp: start.get((settings.logical(tp.topic), tp.partition), earliest[tp]) for tp in tps}
        for tp, offset in wanted.items():
            if offset < earliest[tp]:
                raise BusRefusedError(
                    f"{settings.logical(tp.topic)}[{tp.partition}] begins at {earliest[tp]} by now: retention has taken "
                    f"[{offset}, {earliest[tp]}). Read on from there knowingly, or read the archive."
                )
        return wanted, end
    raise ValueError(f"start must be 'earliest', 'latest', epoch ms or offsets by (topic, partition), not {start!r}")


async def _poll(
    settings: BusSettings, consumer: AIOKafkaConsumer, tps: set[TopicPartition]
) -> dict[TopicPartition, list[Any]]:
    try:
        polled: dict[TopicPartition, list[Any]] = await consumer.getmany(
            *tps, timeout_ms=settings.fetch_wait_ms, max_records=_POLL_RECORDS
        )
    except OffsetOutOfRangeError as error:
        raise BusRefusedError(f"retention has overtaken this reader: {error!r}") from error
    except (KafkaError, ConsumerStoppedError) as error:
        raise BusUnavailableError(f"reading failed: {error!r}") from error
    return polled


async def resolved_patiently(delivery: Delivery, blobs: BlobStore) -> Delivery:
    """The delivery with its real value, however long the blob store is away."""
    while True:
        try:
            return await resolve(delivery, blobs)
        except BlobStoreUnavailableError as error:
            _log.warning("blobs.unreachable", topic=delivery.topic, offset=delivery.offset, error=str(error))
            await asyncio.sleep(_PAUSE_S)


async def _patiently(settings: BusSettings, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer, within the connect deadline."""
    try:
        async with asyncio.timeout(settings.connect_deadline_s):
            while True:
                try:
                    return await ask()
                except KafkaError as error:
                    _log.warning("offsets.delayed", error=repr(error))
                    await asyncio.sleep(_PAUSE_S)
    except TimeoutError as late:
        raise BusUnavailableError(f"Kafka at {settings.bootstrap} didn't tell its offsets in time") from late
