"""Replay: trajectories made again from the raw calls, with another builder or another drift policy; pure of how they are stored.

In: a log (Kafka or an archive) with capture.completions and rollout.sessions. Out: the trajectories of every lease that was opened
in a span of time, in a fixed order: by partition, then in the order in which their last fact stands on the log. The rules are the
assembler's own. A replay that is stopped goes on from its checkpoint; what it puts out doesn't depend on that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import structlog

from bus import Delivery, Start, is_retriable
from bus.protocol import LogReader
from schemas.records import (
    CompletionDelivery,
    CompletionRecord,
    Record,
    SessionEvent,
    SessionEventType,
    SessionOpened,
    SessionSealed,
    Trajectory,
)
from stream_processors.assembler.core import BadFactError, apply, assemble, close
from stream_processors.assembler.row import SessionRow
from stream_processors.builders import BUILDERS, Lease, Options, UnknownBuilderError

_log = structlog.get_logger(__name__)

CAPTURE: Final = "capture.completions"
SESSIONS: Final = "rollout.sessions"
CLOCK_MARGIN_MS: Final = 60_000
"""Clocks of proxies and brokers may differ: openings are looked for from a minute before the span on."""

CHECKPOINT_RECORDS: Final = 10_000
"""Records between two checkpoints: a stopped replay reads about that many again, and what is still open."""


class Output(Protocol):
    """Where trajectories go."""

    async def put(self, trajectory: Trajectory) -> None:
        """Take one."""
        ...

    async def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Make durable all that was put, then the checkpoint; what was put after the last one may be put again."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replay: sessions opened in [from_ms, to_ms) (UTC epoch ms; None: no limit), and how to build them.

    Empty `builder` and None as `options` are the session's own.
    """

    builder: str = ""
    options: Mapping[str, Any] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    sessions: frozenset[str] | None = None

    def check(self) -> None:
        """Raise UnknownBuilderError for a builder or an option that this version doesn't have."""
        if self.builder and self.builder not in BUILDERS:
            raise UnknownBuilderError(f"no builder {self.builder!r}: use one of {', '.join(sorted(BUILDERS))}")
        if self.options is not None:
            Options.parse(self.builder or "prefix_merging", self.options)

    def applied(self, row: SessionRow) -> SessionRow:
        """A session's row with the builder that is wanted."""
        return replace(
            row,
            builder=self.builder or row.builder,
            builder_options=row.builder_options if self.options is None else dict(self.options),
            is_specified=True,
        )


@dataclass(slots=True)
class Progress:
    """How far a replay is. `skipped` counts what has no trajectory, by reason; `states` the calls in the trajectories."""

    partition: int = 0
    partitions: int = 0
    offset: int = 0
    end: int = 0
    records: int = 0
    trajectories: int = 0
    traces: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)


async def replay(
    log: LogReader,
    wanted: Wanted,
    output: Output,
    *,
    checkpoint: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Replay everything up to the log's present end; `checkpoint` is what `Output.save` last got.

    Raises UnknownBuilderError before anything is read, UnknownSchemaIdError for records of a newer release.
    """
    wanted.check()
    ends = await log.end_offsets(CAPTURE)
    saved = dict(checkpoint or {})
    progress = Progress(partitions=len(ends))
    for name, count in dict(saved.get("counts", {})).items():
        setattr(progress, name, Counter(count) if isinstance(count, dict) else count)
    for partition in sorted(ends):
        if partition in saved.get("done", ()):
            continue
        progress.partition, progress.offset, progress.end = partition, 0, ends[partition]
        await _Partition(log, wanted, output, progress, saved).run(on_progress)
    return progress


class _Partition:
    """The replay of one partition: the facts of its sessions first, then its calls as they came."""

    def __init__(
        self, log: LogReader, wanted: Wanted, output: Output, progress: Progress, saved: dict[str, Any]
    ) -> None:
        self._log = log
        self._wanted = wanted
        self._output = output
        self._progress = progress
        self._partition = progress.partition
        self._saved = saved
        is_begun = saved.get("partition") == self._partition
        self._resume_at: int | None = saved.get("resume_at") if is_begun else None
        self._told: set[str] = set(saved.get("told", ())) if is_begun else set()
        """Leases that are told or skipped."""
        self._rows: dict[str, SessionRow] = {}
        self._with_events: set[str] = set()
        self._grown: dict[str, Lease] = {}
        self._first: dict[str, int] = {}
        self._opened: set[str] = set()
        """Leases whose first writer's opening is read, and is in the span."""
        self._session_of: dict[str, str] = {}

    async def run(self, on_progress: Callable[[Progress], None]) -> None:
        await self._read_sessions()
        start: Start = (
            {(CAPTURE, self._partition): self._resume_at}
            if self._resume_at is not None
            else "earliest"
            if self._wanted.from_ms is None
            else max(0, self._wanted.from_ms - CLOCK_MARGIN_MS)
        )
        since = 0
        async for delivery, fact in self._read(CAPTURE, start):
            self._progress.offset = delivery.offset + 1
            self._progress.records += 1
            await self._take(delivery, fact)
            since += 1
            if since >= CHECKPOINT_RECORDS:
                since = 0
                await self._save(resume_at=min(self._first.values(), default=delivery.offset + 1))
                on_progress(self._progress)
        await self._close_the_rest()
        self._saved["done"] = sorted({*self._saved.get("done", ()), self._partition})
        await self._save(resume_at=None)
        on_progress(self._progress)

    async def _read_sessions(self) -> None:
        """What was decided about leases. That a grace was over isn't read: whatever came later is here, too."""
        ends = await self._log.end_offsets(SESSIONS)
        if self._partition not in ends:
            return
        async for _, fact in self._read(SESSIONS, "earliest"):
            is_event = isinstance(fact, SessionEvent) and fact.session_id
            if is_event and fact.type not in (SessionEventType.SEAL_OVERDUE, SessionEventType.FORGOTTEN):
                self._with_events.add(fact.session_id)
                self._rows[fact.session_id] = apply(self._rows.get(fact.session_id, SessionRow()), fact).row

    async def _read(self, topic: str, start: Start) -> AsyncGenerator[tuple[Delivery, Any], None]:
        tail = self._log.tail([topic], start=start, partitions=[self._partition], until_end=True)
        async with aclosing(tail) as deliveries:
            async for delivery in deliveries:
                if delivery.is_tombstone:
                    continue
                try:
                    fact: Record = delivery.decode()
                except Exception as error:  # the record's boundary: what the assembler buried is counted here
                    if is_retriable(error):
                        raise
                    self._progress.skipped["unreadable_record"] += 1
                    continue
                yield delivery, fact

    async def _take(self, delivery: Delivery, fact: Record) -> None:
        if not isinstance(fact, SessionOpened | CompletionRecord | CompletionDelivery | SessionSealed):
            return
        lease_id = fact.lease_id
        if lease_id in self._told:
            return
        if reason := self._refuses(fact):
            self._skip(lease_id, reason)
            return
        if lease_id not in self._first:
            self._first[lease_id] = delivery.offset
            self._session_of[lease_id] = fact.session_id
            self._grown[lease_id] = Lease()
        try:
            step = apply(self._rows.get(fact.session_id, SessionRow()), fact)
        except BadFactError:
            self._progress.skipped["unreadable_record"] += 1
            return
        self._rows[fact.session_id] = step.row
        grown = self._grown[lease_id]
        is_call = isinstance(fact, CompletionRecord) and (fact.writer, fact.call_seq) not in grown.numbers()
        if is_call or isinstance(fact, CompletionDelivery):  # of two records under one number the first stands
            grown.add(fact)
        for closing in step.closing:
            if closing in self._grown:
                await self._tell(closing, delivery.timestamp_ms)

    def _refuses(self, fact: SessionOpened | CompletionRecord | CompletionDelivery | SessionSealed) -> str:
        """Why the lease of this fact isn't replayed ('': nothing speaks against it so far)."""
        wanted = self._wanted
        if wanted.sessions is not None and fact.session_id not in wanted.sessions:
            return "other_session"
        if not isinstance(fact, SessionOpened) or fact.writer != 1:
            return ""  # a second writer's facts may stand before those of a first one whose spool came late
        if wanted.from_ms is not None and fact.opened_at < wanted.from_ms:
            return "began_earlier"
        if wanted.to_ms is not None and fact.opened_at >= wanted.to_ms:
            return "began_later"
        self._opened.add(fact.lease_id)
        return ""

    @property
    def _unopened(self) -> str:
        """The reason for a lease whose opening isn't among what was read."""
        return "beginning_missing" if self._wanted.from_ms is None else "began_earlier"

    def _skip(self, lease_id: str, reason: str) -> None:
        self._told.add(lease_id)
        self._progress.skipped[reason] += 1
        for held in (self._first, self._grown, self._session_of):
            held.pop(lease_id, None)

    async def _tell(self, lease_id: str, at_ms: int) -> None:
        row = self._wanted.applied(self._rows[self._session_of[lease_id]])
        has_span = (self._wanted.from_ms, self._wanted.to_ms) != (None, None)
        if lease_id not in self._opened and (has_span or row.leases[lease_id].gaps()):
            self._skip(lease_id, self._unopened)
            return
        session_id = self._session_of.pop(lease_id)
        grown = self._grown.pop(lease_id)
        trajectory = await asyncio.to_thread(assemble, row, session_id, lease_id, grown, at_ms)
        self._rows[session_id] = close(self._rows[session_id], lease_id, trajectory.content_digest)
        self._told.add(lease_id)
        del self._first[lease_id]
        await self._output.put(trajectory)
        progress, counts = self._progress, trajectory.counts
        progress.trajectories += 1
        progress.traces += counts.traces
        progress.states.update({"trained": counts.trained, "context": counts.context, **counts.untrainable})

    async def _close_the_rest(self) -> None:
        """What ended with holes, or whose end only its writers told, is told now; what still runs isn't."""
        for lease_id in sorted(self._first, key=lambda name: self._first[name]):
            row = self._rows[self._session_of[lease_id]]
            lease = row.leases[lease_id]
            is_untold = self._session_of[lease_id] not in self._with_events
            if lease.sealed is not None or (is_untold and not lease.gaps()):
                await self._tell(lease_id, lease.opened_at)
            elif lease_id not in self._opened:
                self._skip(lease_id, self._unopened)
            else:
                self._progress.skipped["still_open"] += 1

    async def _save(self, *, resume_at: int | None) -> None:
        progress = self._progress
        self._saved |= {
            "partition": None if resume_at is None else self._partition,
            "resume_at": resume_at,
            "told": [] if resume_at is None else sorted(self._told),
            "counts": {
                "trajectories": progress.trajectories,
                "traces": progress.traces,
                "records": progress.records,
                "skipped": dict(progress.skipped),
                "states": dict(progress.states),
            },
        }
        await self._output.save(self._saved)
