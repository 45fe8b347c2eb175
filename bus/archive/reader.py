"""Reads an archive like the log that it was written from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bus.archive.layout import ArchiveError, Piece, partitions, pieces, require_pyarrow
from bus.deliveries import Delivery, Start

_BATCH_ROWS: Final = 256
"""Records in memory at a time; one may have some megabytes."""


class ArchiveLog:
    """The records of an archive, where they stood on the log; it has an end, and `tail` always stops there."""

    def __init__(self, root: Path) -> None:
        """Raises ArchiveError when there is no archive, or no pyarrow to read it with."""
        require_pyarrow()
        if not root.is_dir():
            raise ArchiveError(f"no archive at {root}; `polynya archive {root}` makes one of the running stack")
        self._root = root

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset behind the last archived record of each partition."""
        found = {n: pieces(self._root, topic, n) for n in partitions(self._root, topic)}
        return {n: files[-1].last + 1 for n, files in found.items() if files}

    async def tail(
        self,
        topics: Sequence[str],
        *,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        until_end: bool = True,
        resolved: bool = True,
    ) -> AsyncGenerator[Delivery, None]:
        """The records of these topics from `start` on, partition by partition in the order of offsets."""
        del (
            until_end,
            resolved,
        )  # there is nothing behind the end to wait for, and an archive holds the values themselves
        for topic in topics:
            for number in sorted(await self.end_offsets(topic)):
                if partitions is None or number in partitions:
                    async for delivery in self._partition(topic, number, start):
                        yield delivery

    async def _partition(self, topic: str, number: int, start: Start) -> AsyncGenerator[Delivery, None]:
        if start == "latest":
            return
        first = start.get((topic, number), 0) if isinstance(start, Mapping) else 0
        since_ms = start if isinstance(start, int) else None
        for piece in pieces(self._root, topic, number):
            if piece.last < first:
                continue
            batches = _batches(piece)
            while (rows := await asyncio.to_thread(next, batches, None)) is not None:
                for row in rows:
                    delivery = _delivery(topic, number, row)
                    # From the first record of that time on, as brokers do; then by offset, whatever the clocks say.
                    if since_ms is not None and delivery.timestamp_ms < since_ms:
                        continue
                    since_ms = None
                    if delivery.offset >= first:
                        yield delivery


def _batches(piece: Piece) -> Iterator[list[dict[str, Any]]]:
    pa = require_pyarrow()
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(piece.path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                yield batch.to_pylist()
    except (pa.ArrowException, OSError) as exc:
        raise ArchiveError(
            f"{piece.path} can't be read: {exc}; put back a copy, or remove it and go without its records"
        ) from exc


def _delivery(topic: str, partition: int, row: Mapping[str, Any]) -> Delivery:
    value: bytes | None = row["value"]
    return Delivery(
        topic=topic,
        partition=partition,
        offset=row["offset"],
        timestamp_ms=round(row["timestamp"].timestamp() * 1000),
        key=row["key"],
        value=value or b"",
        header_list=tuple((h["name"], h["value"]) for h in row["headers"]),
        is_tombstone=value is None,
    )
