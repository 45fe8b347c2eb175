"""One partition of a lane: its records wait in a queue, one is in hand, and the next offset to commit is known."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import structlog

from bus.deliveries import Delivery
from bus.handling import AbandonedError, RecordHandling

_log = structlog.get_logger(__name__)

Partition = tuple[str, int]
"""A topic of the catalogue and a partition's number."""

QUEUE_RECORDS: Final = 256
"""Records that wait per partition. The lane asks only for partitions with room: a pause would be lost in a rebalance."""


class PartitionWorker:
    """Handles a partition's records one after the other, until it is drained."""

    def __init__(self, partition: Partition, handling: RecordHandling, wake: asyncio.Event) -> None:
        self.partition = partition
        self.next_offset: int | None = None
        """The offset after the last handled record; None before the first."""
        self.committed: int | None = None
        """What the lane has committed."""
        self._handling = handling
        self._wake = wake
        self._queue: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._giving_up = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"partition {partition[0]}[{partition[1]}]")

    @property
    def has_room(self) -> bool:
        """Whether the lane should ask for more."""
        return len(self._queue) < QUEUE_RECORDS

    @property
    def is_ahead(self) -> bool:
        """Whether there is something to commit."""
        return self.next_offset != self.committed

    def take(self, deliveries: list[Delivery]) -> None:
        """Queue records that follow the queued ones."""
        self._queue.extend(deliveries)
        self._arrived.set()

    def raise_if_broken(self) -> None:
        """Raise what ended the worker, if something did: a bug, since records' errors end nothing."""
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    async def drain(self, timeout_s: float) -> None:
        """Let the record in hand finish, within the time given; the queued ones belong to the next owner."""
        self._giving_up.set()
        self._arrived.set()
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            _log.warning("record.abandoned", topic=self.partition[0], partition=self.partition[1], after_s=timeout_s)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=timeout_s)

    async def _run(self) -> None:
        while not self._giving_up.is_set():
            if not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            delivery = self._queue.popleft()
            try:
                await self._handling.handle(delivery, self._giving_up)
            except AbandonedError:
                return
            self.next_offset = delivery.offset + 1
            self._wake.set()
