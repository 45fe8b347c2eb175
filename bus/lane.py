"""The consumer lane: a group member that handles each partition in order and commits exactly what it has handled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from bus.deliveries import Delivery
from bus.errors import BusError
from bus.handling import Problem, RecordHandling
from bus.partition_worker import Partition, PartitionWorker

_log = structlog.get_logger(__name__)

POLL_S: Final = 0.2
"""One wait for records; also the longest time until a stop or a due commit is noticed."""

DRAIN_S: Final = 10.0
"""For the records in hand when partitions are given up; less than the group's rebalance timeout of 30 s."""

COMMIT_S: Final = 10.0
"""For the commit when partitions are given up. An uncommitted record is handled again, never lost."""


class RebalanceListener(Protocol):
    """What a group source tells its lane."""

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """These are about to go to another member; what is committed until this returns isn't delivered again."""
        ...

    async def assigned(self, partitions: Collection[Partition]) -> None:
        """These are ours from now on, from their committed offsets."""
        ...


class GroupSource(Protocol):
    """A member of a consumer group: on Kafka, or in memory."""

    async def open(self, listener: RebalanceListener) -> None:
        """Join the group; tries until it succeeds or is cancelled."""
        ...

    async def poll(self, partitions: Collection[Partition], timeout_s: float) -> Mapping[Partition, list[Delivery]]:
        """Records of these partitions, in order; empty after `timeout_s`. Raises `BusError` when it must be opened again."""
        ...

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit the next offset of each partition; raises `BusError` when the group has moved on."""
        ...

    def end_of(self, partition: Partition) -> int | None:
        """The end offset as last heard, if known."""
        ...

    async def close(self) -> None:
        """Leave the group."""
        ...


@dataclass(frozen=True, slots=True)
class LaneHealth:
    """How a lane does."""

    is_healthy: bool
    """It runs and no partition stands still."""
    problems: tuple[Problem, ...]
    assigned: tuple[Partition, ...]
    lag: dict[Partition, int]
    """Records behind the end, where the end is known."""
    handled: int
    buried: int


class Lane:
    """Consumes topics as a member of a group, at least once.

    The handler is awaited record by record within a partition, in parallel across partitions. When it returns, everything that
    it caused must be acknowledged: the offset is then committed. When it raises
    an error that is retriable (`is_retriable`, a time-out, a broken connection), the same record is tried again, with growing pauses,
    for ever; the lane's health says so. Any other error, and a value that doesn't decode, makes the record a dead letter. An unknown
    schema id stops its partition only, until the registry knows it.
    """

    def __init__(
        self,
        name: str,
        source: GroupSource,
        handling: RecordHandling,
        *,
        commit_interval_s: float = 0.1,
        drain_s: float = DRAIN_S,
    ) -> None:
        self.name = name
        self._source = source
        self._handling = handling
        self._commit_interval_s = commit_interval_s
        self._drain_s = drain_s
        self._workers: dict[Partition, PartitionWorker] = {}
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._last_commit = 0.0
        self._is_running = False

    async def run(self) -> None:
        """Consume until `stop`. Waits out outages; raises only what a bug raises. Cancelling stops it in order, too."""
        if self._is_running or self._ended.is_set():
            raise RuntimeError(f"lane {self.name} runs already or has ended: make a new one")
        self._is_running = True
        log = _log.bind(lane=self.name)
        try:
            while not self._stopping.is_set():
                if not await self._open():
                    break
                try:
                    await self._consume()
                except BusError as error:
                    # The group's member is lost, not the lane: what isn't committed comes again.
                    log.warning("lane.reopened", error=repr(error))
                finally:
                    await self._close()
        finally:
            self._is_running = False
            self._ready.clear()
            self._ended.set()
            log.info("lane.stopped", handled=self._handling.handled, buried=self._handling.buried)

    def stop(self) -> Awaitable[None]:
        """Ask the lane to finish the records in hand, commit and leave. Await the result to know when it has."""
        self._stopping.set()
        self._wake.set()
        if not self._is_running:
            self._ended.set()
        return _Ended(self._ended)

    async def wait_ready(self) -> None:
        """Wait until the group has given the lane its partitions (perhaps none)."""
        await self._ready.wait()

    def health(self) -> LaneHealth:
        """How it does; `problems` names topic, partition and offset of what stands still."""
        lag = {}
        for partition, worker in self._workers.items():
            end = self._source.end_of(partition)
            if end is not None and worker.next_offset is not None:
                lag[partition] = max(0, end - worker.next_offset)
        problems = tuple(self._handling.problems.values())
        return LaneHealth(
            is_healthy=self._ready.is_set() and not problems,
            problems=problems,
            assigned=tuple(sorted(self._workers)),
            lag=lag,
            handled=self._handling.handled,
            buried=self._handling.buried,
        )

    # -- what the source tells ---------------------------------------------------------------------------------------

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Finish or give up the records in hand of these partitions, and commit."""
        workers = [worker for p in partitions if (worker := self._workers.get(p)) is not None]
        await asyncio.gather(*(worker.drain(self._drain_s) for worker in workers))
        await self._commit_quietly(workers)
        for worker in workers:
            del self._workers[worker.partition]

    async def assigned(self, partitions: Collection[Partition]) -> None:
        """Begin to work on these partitions."""
        for partition in partitions:
            self._workers[partition] = PartitionWorker(partition, self._handling, self._wake)
        _log.info("lane.assigned", lane=self.name, partitions=sorted(partitions))
        self._ready.set()
        self._wake.set()

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _open(self) -> bool:
        """Join the group; False when the lane is stopped before it could."""
        joining = asyncio.ensure_future(self._source.open(self))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                joining.result()
                return True
            return False
        finally:
            for task in (joining, stopping):
                task.cancel()
            await asyncio.gather(joining, stopping, return_exceptions=True)
            if not joining.done() or joining.cancelled():
                await self._source.close()

    async def _consume(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            wanted = [worker.partition for worker in self._workers.values() if worker.has_room]
            if wanted:
                for partition, deliveries in (await self._source.poll(wanted, POLL_S)).items():
                    worker = self._workers.get(partition)
                    if worker is not None:
                        worker.take(deliveries)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()
            for worker in self._workers.values():
                worker.raise_if_broken()
            now = asyncio.get_running_loop().time()
            if now - self._last_commit >= self._commit_interval_s:
                self._last_commit = now
                await self._commit(self._workers.values())

    async def _commit(self, workers: Collection[PartitionWorker]) -> None:
        offsets = {w.partition: w.next_offset for w in workers if w.next_offset is not None and w.is_ahead}
        if offsets:
            await self._source.commit(offsets)
            for worker in workers:
                if worker.partition in offsets:
                    worker.committed = offsets[worker.partition]

    async def _commit_quietly(self, workers: Collection[PartitionWorker]) -> None:
        """The last commit of partitions that go away: what can't be committed is handled again by whoever gets them."""
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._commit(workers)
        except (BusError, TimeoutError) as error:
            _log.warning("lane.uncommitted", lane=self.name, error=repr(error))

    async def _close(self) -> None:
        self._ready.clear()
        await self.revoked(list(self._workers))
        await self._source.close()


class _Ended:
    """Awaitable for callers who want to know, harmless for those who don't."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def __await__(self) -> Generator[object, None, None]:
        yield from self._ended.wait().__await__()
