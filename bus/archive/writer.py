"""Copies topics into an archive: a reader of the log without a group, whose position is what it has written."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from bus.archive.layout import ARCHIVED_TOPICS, ArchiveError, columns, piece_path, pieces, require_pyarrow
from bus.deliveries import Delivery, Start
from bus.errors import BusError, BusRefusedError
from bus.protocol import Bus

_log = structlog.get_logger(__name__)

FLUSH_BYTES: Final = 64 << 20
"""A file's records take that much in memory at most; smaller files cost readers a little more each."""

FLUSH_S: Final = 60.0
"""What was read that long ago is on the disk."""

PAUSE_S: Final = 1.0
_READ_AHEAD: Final = 1000

Place = tuple[str, int]


@dataclass(slots=True)
class ArchiveReport:
    """What one run wrote: records and files by topic, records by partition; and what the log had lost before."""

    records: dict[str, int] = field(default_factory=dict)
    files: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    """Records that retention took before they were archived, by topic."""


@dataclass(slots=True)
class _Buffer:
    rows: list[Delivery] = field(default_factory=list)
    size_bytes: int = 0


async def archive(
    bus: Bus,
    root: Path,
    *,
    topics: Sequence[str] = ARCHIVED_TOPICS,
    stop: asyncio.Event | None = None,
    flush_bytes: int = FLUSH_BYTES,
    flush_s: float = FLUSH_S,
    on_change: Callable[[ArchiveReport], None] = lambda _: None,
) -> ArchiveReport:
    """Archive what the log holds now, or, with `stop`, what it holds and gets until that is set.

    Claim checks are resolved, so an archive stands for itself. Raises ArchiveError when another process writes it, when it is
    of another log, or without pyarrow; outages of the log are waited out when `stop` is given.
    """
    require_pyarrow()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ArchiveError(f"no archive can be made at {root}: {exc.strerror}") from exc
    with _only_writer(root):
        writer = _Writer(bus, root, topics, flush_bytes=flush_bytes, flush_s=flush_s, on_change=on_change)
        await writer.find_positions()
        if stop is None:
            await writer.read(until_end=True)
        else:
            await writer.follow(stop)
        return writer.report


@contextmanager
def _only_writer(root: Path) -> Iterator[None]:
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise ArchiveError(f"another process writes the archive {root}") from exc
        yield


class _Writer:
    def __init__(
        self,
        bus: Bus,
        root: Path,
        topics: Sequence[str],
        *,
        flush_bytes: int,
        flush_s: float,
        on_change: Callable[[ArchiveReport], None],
    ) -> None:
        self._bus = bus
        self._root = root
        self._topics = topics
        self._flush_bytes = flush_bytes
        self._flush_s = flush_s
        self._on_change = on_change
        self._next: dict[Place, int] = {}
        self._buffers: dict[Place, _Buffer] = {}
        self.report = ArchiveReport()

    async def find_positions(self) -> None:
        """Go on behind the last file of each partition."""
        for topic in self._topics:
            for partition, end in (await self._bus.end_offsets(topic)).items():
                files = pieces(self._root, topic, partition)
                if files and files[-1].last >= end:
                    raise ArchiveError(
                        f"the archive {self._root} has {topic}[{partition}] up to offset {files[-1].last}, but the log ends at "
                        f"{end}: it is of another log; use another directory"
                    )
                if files:
                    self._next[topic, partition] = files[-1].last + 1

    async def follow(self, stop: asyncio.Event) -> None:
        """Read for ever, through outages; what was read is written at the end."""
        while not stop.is_set():
            reading = asyncio.create_task(self.read(until_end=False))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, stopping):
                task.cancel()
            (outcome, _) = await asyncio.gather(reading, stopping, return_exceptions=True)
            if isinstance(outcome, ArchiveError) or (
                isinstance(outcome, Exception) and not isinstance(outcome, BusError)
            ):
                raise outcome
            if isinstance(outcome, BusError):
                _log.warning("archive.interrupted", error=str(outcome))
                await asyncio.sleep(PAUSE_S)

    async def read(self, *, until_end: bool) -> None:
        """Read from where the files end; whatever ends it, what was read is written."""
        self._buffers.clear()
        queue: asyncio.Queue[Delivery | None] = asyncio.Queue(_READ_AHEAD)
        reading = asyncio.create_task(self._pump(queue, until_end=until_end))
        loop = asyncio.get_running_loop()
        flush_at = loop.time() + self._flush_s
        try:
            while True:
                try:
                    async with asyncio.timeout_at(flush_at):
                        delivery = await queue.get()
                except TimeoutError:
                    await self._flush_all()
                    flush_at = loop.time() + self._flush_s
                    continue
                if delivery is None:
                    break
                await self._take(delivery)
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await self._flush_all()

    async def _pump(self, queue: asyncio.Queue[Delivery | None], *, until_end: bool) -> None:
        """Read on another task, so that waiting for a record can be given up without giving up the reader."""
        start: Start = dict(self._next)
        try:
            try:
                await self._tail(queue, start, until_end=until_end)
            except BusRefusedError as error:
                # Retention was faster. What is left is archived, and the hole shows in the files' names.
                _log.error("archive.gap", error=str(error))
                await self._tail(queue, "earliest", until_end=until_end)
        except Exception:  # whatever ended it: who waits for records hears of the end first, then gets the error
            await queue.put(None)
            raise
        await queue.put(None)

    async def _tail(self, queue: asyncio.Queue[Delivery | None], start: Start, *, until_end: bool) -> None:
        async with aclosing(self._bus.tail(self._topics, start=start, until_end=until_end)) as deliveries:
            async for delivery in deliveries:
                await queue.put(delivery)

    async def _take(self, delivery: Delivery) -> None:
        place = (delivery.topic, delivery.partition)
        expected = self._next.get(place, delivery.offset)
        if delivery.offset < expected:
            return
        if delivery.offset > expected:
            lost = self.report.lost
            lost[delivery.topic] = lost.get(delivery.topic, 0) + delivery.offset - expected
            await self._flush(place)  # so that no file's name covers the hole
        self._next[place] = delivery.offset + 1
        buffer = self._buffers.setdefault(place, _Buffer())
        buffer.rows.append(delivery)
        buffer.size_bytes += len(delivery.value)
        if buffer.size_bytes >= self._flush_bytes:
            await self._flush(place)

    async def _flush_all(self) -> None:
        for place in list(self._buffers):
            await self._flush(place)

    async def _flush(self, place: Place) -> None:
        buffer = self._buffers.pop(place, None)
        if buffer is None:
            return
        topic, partition = place
        first, last = buffer.rows[0].offset, buffer.rows[-1].offset
        path = piece_path(self._root, topic, partition, first, last)
        await _to_its_end(asyncio.to_thread(_write, buffer.rows, path))
        self.report.records[topic] = self.report.records.get(topic, 0) + len(buffer.rows)
        self.report.files += 1
        self._on_change(self.report)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for `work` also when cancelled meanwhile: its thread would go on, beside the archive's next writer."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _write(rows: list[Delivery], path: Path) -> None:
    """Write a file aside, and give it its name once it is on the disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    table = pa.Table.from_pylist([_row(d) for d in rows], schema=columns())
    try:
        pq.write_table(table, part, compression="zstd", use_dictionary=["type", "session_id"])
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _row(delivery: Delivery) -> dict[str, object]:
    headers = delivery.headers
    return {
        "offset": delivery.offset,
        "timestamp": delivery.timestamp_ms,
        "key": delivery.key,
        "type": headers.get("ce_type", b"").decode(errors="replace").rpartition(".")[2],
        "session_id": headers.get("session_id", b"").decode(errors="replace"),
        "value": None if delivery.is_tombstone else delivery.value,
        "headers": [{"name": name, "value": value} for name, value in delivery.header_list],
    }
