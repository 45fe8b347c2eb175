"""Reads a lease's earlier calls back from the log: those of a predecessor, or our own that were let go to save memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import structlog

from bus import Delivery, EventLog, Start
from bus.sessions import MARGIN_MS, TOPIC
from capture_proxy.leases import Lease
from capture_proxy.lineage.index import Lineage
from schemas.records import CompletionDelivery, CompletionRecord, Record, SessionOpened, SessionSealed

log = structlog.get_logger(__name__)

_GATHER_S: Final = 0.05
"""A dead proxy's leases are opened elsewhere within moments of each other: so long a scan waits for company."""

_PAUSE_S: Final = 0.5
"""Before reading is tried again when the log is away."""

_FOLLOW_TIMES: Final = 10
"""How many times the calls' patience a scan goes on in the background, until a late predecessor's records are in."""

_SLICE: Final = 20
"""So many records are taken before other work on the loop has its turn."""


@dataclass(eq=False, slots=True)
class Rebuilding:
    """One lease whose calls are being read back.

    `takes_over` is the writer before ours (0: only our own calls are missing), `own_seq` the last of our own that is on the log.
    `done`: calls needn't wait any longer, because everything is here, or because it took too long (`lineage.has_gap`).
    """

    lease: Lease
    lineage: Lineage
    takes_over: int
    own_seq: int = 0
    since_ms: int | None = None
    """From this time on its records are looked for; None: from the beginning of the log."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    is_dropped: bool = False
    """The lease is sealed: nobody asks any more."""
    _opened: dict[int, int] = field(default_factory=dict)
    _sealed: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, set[int]] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Takes one fact of the lease; again changes nothing."""
        if isinstance(record, SessionOpened):
            self._opened[record.writer] = record.takes_over or record.writer - 1
        elif isinstance(record, SessionSealed):
            self._sealed[record.writer] = record.last_seq
        elif isinstance(record, CompletionRecord):
            self._seen.setdefault(record.writer, set()).add(record.call_seq)
            self.lineage.add(record)
        elif isinstance(record, CompletionDelivery):
            self.lineage.deliver(record.completion_id, is_delivered=record.delivered)
        if self.is_complete:
            self.lineage.has_gap = False
            self.done.set()

    @property
    def is_complete(self) -> bool:
        """Whether each predecessor is sealed and all calls up to its seal, and our own, are here."""
        if self.is_dropped:
            return True
        if not self._has_all(self.lease.writer, self.own_seq):
            return False
        writer = self.takes_over
        while writer > 0:
            last = self._sealed.get(writer)
            if last is None or writer not in self._opened or not self._has_all(writer, last):
                return False
            writer = min(self._opened[writer], writer - 1)
        return True

    def _has_all(self, writer: int, last_seq: int) -> bool:
        seen = self._seen.get(writer, set())
        return len(seen) >= last_seq and seen.issuperset(range(1, last_seq + 1))

    def stop_waiting(self) -> None:
        """It took too long: calls go on with what is here."""
        if not self.done.is_set():
            self.lineage.has_gap = True
            self.done.set()
            log.warning("lineage.gap", session_id=self.lease.session_id, lease_id=self.lease.lease_id)


class Rebuilder:
    """Scans `capture.completions` for leases whose calls are missing: one scan for all that are asked for at once.

    `adopt` takes over the spools of dead proxies that this machine has; calls wait at most `wait_s`.
    """

    def __init__(self, bus: EventLog, *, adopt: Callable[[], Awaitable[None]], wait_s: float) -> None:
        self._bus = bus
        self._adopt = adopt
        self._wait_s = wait_s
        self._asked: list[Rebuilding] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, job: Rebuilding) -> None:
        """Begins to read a lease's calls back."""
        self._asked.append(job)
        if len(self._asked) == 1:
            task = asyncio.create_task(self._run(), name="lineage-rebuild")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Ends all scans; calls that wait go on with a gap."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        await asyncio.sleep(_GATHER_S)
        jobs, self._asked = self._asked, []
        timer = asyncio.get_running_loop().call_later(self._wait_s, _stop_waiting, jobs)
        adopting = asyncio.create_task(self._adopt_spools(), name="lineage-adopt")
        try:
            async with asyncio.timeout(self._wait_s * _FOLLOW_TIMES):
                await self._scan(jobs)
        except TimeoutError:
            log.warning("lineage.incomplete", leases=[job.lease.lease_id for job in jobs if not job.is_complete])
        finally:
            timer.cancel()
            adopting.cancel()
            await asyncio.gather(adopting, return_exceptions=True)
            _stop_waiting(jobs)

    async def _adopt_spools(self) -> None:
        try:
            await self._adopt()
        except OSError as error:
            log.warning("spool.adoption_failed", error=str(error))

    async def _scan(self, jobs: list[Rebuilding]) -> None:
        """Reads until every lease is complete; begins again after an outage."""
        while not all(job.is_complete for job in jobs):
            try:
                await self._read(jobs)
            except Exception as error:  # noqa: BLE001 - the scan's boundary: an outage of the log ends no session
                log.warning("lineage.scan_interrupted", error=repr(error))
                await asyncio.sleep(_PAUSE_S)
        log.info("lineage.rebuilt", leases=len(jobs), calls=sum(len(job.lineage.nodes) for job in jobs))

    async def _read(self, jobs: list[Rebuilding]) -> None:
        by_lease = {job.lease.lease_id.encode(): job for job in jobs}
        partitions = {await self._bus.partition_for(TOPIC, job.lease.session_id) for job in jobs}
        tail = self._bus.tail([TOPIC], start=_start(jobs), partitions=sorted(partitions))
        async with aclosing(tail) as deliveries:
            count = 0
            async for delivery in deliveries:
                count += 1
                job = by_lease.get(delivery.headers.get("lease_id", b""))
                if job is not None:
                    _take(job, delivery)
                    if all(job.is_complete for job in jobs):
                        return
                if count % _SLICE == 0:
                    await asyncio.sleep(0)


def _stop_waiting(jobs: Iterable[Rebuilding]) -> None:
    for job in jobs:
        job.stop_waiting()


def _start(jobs: Iterable[Rebuilding]) -> Start:
    times = [job.since_ms for job in jobs]
    known = [ms for ms in times if ms is not None]
    return max(0, min(known) - MARGIN_MS) if len(known) == len(times) else "earliest"


def _take(job: Rebuilding, delivery: Delivery) -> None:
    try:
        record = delivery.decode()
    except Exception as error:  # noqa: BLE001 - the record's boundary: what can't be read leaves a gap, which is told
        log.warning("record.unreadable", where=delivery.where, error=repr(error))
        return
    job.take(record)
