"""The lineages of this proxy's leases, within a bound: made when a lease opens, read back when they are missing, gone at the seal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from capture_proxy.leases import Lease, LeaseState
from capture_proxy.lineage.identity import Trail
from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.rebuild import Rebuilder, Rebuilding
from schemas.records import CompletionRecord

log = structlog.get_logger(__name__)

MAX_BYTES: Final = 1 << 30

_Key = tuple[str, int]
"""(lease_id, writer)."""


@dataclass(eq=False, slots=True)
class _Entry:
    lease: Lease
    since_ms: int | None
    takes_over: int
    lineage: Lineage
    rebuilding: Rebuilding | None = None
    counted_bytes: int = 0
    is_evicted: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether its calls are being read back, and worth waiting for."""
        return self.rebuilding is not None and not self.rebuilding.done.is_set()


class Lineages:
    """By lease, in the order of their last use.

    Above `max_bytes` the lineages that were unused for longest are let go, of sessions whose records `is_relayed` (all on the log) and
    that have no call running; they are read back when they are asked for. Without a `rebuilder` nothing is let go or read back.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        rebuilder: Rebuilder | None = None,
        is_relayed: Callable[[str], bool] = lambda _session_id: False,
    ) -> None:
        self.since_of: Callable[[str], int | None] = lambda _session_id: None
        """(session_id) → a time (UTC epoch ms) before its first call, where one is known."""
        self._max_bytes = max_bytes
        self._rebuilder = rebuilder
        self._is_relayed = is_relayed
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self.size_bytes = 0
        self.evicted = 0

    def opened(self, lease: Lease, *, takes_over: int) -> None:
        """A lease was opened; one that an earlier writer had is read back from the log."""
        key = (lease.lease_id, lease.writer)
        if key in self._entries:
            return
        before = takes_over or lease.writer - 1
        since = lease.since_at or (self.since_of(lease.session_id) if before else lease.opened_at) or None
        entry = _Entry(lease, since, before, Lineage(lease.spec.policy_id))
        self._entries[key] = entry
        if before:
            self._rebuild(entry, own_seq=0)

    def is_ready(self, lease: Lease) -> bool:
        """Whether a lease's earlier calls are all here; if they were let go, they are asked for."""
        return not self._entry(lease).is_waiting

    async def ready(self, lease: Lease) -> Lineage:
        """A lease's lineage, once its earlier calls are here, or waiting for them has taken too long."""
        entry = self._entry(lease)
        if entry.rebuilding is not None:
            await entry.rebuilding.done.wait()
            self._count(entry)
        return entry.lineage

    def add(self, lease: Lease, record: CompletionRecord, trail: Trail) -> None:
        """Takes the record of a call that was placed here, and makes room if that is needed."""
        entry = self._entries.get((lease.lease_id, lease.writer))
        if entry is None:
            return
        entry.lineage.add(record, trail=trail, is_claimed=True)
        self._count(entry)
        self._make_room(but=entry)

    def deliver(self, lease: Lease, completion_id: str, *, is_delivered: bool) -> None:
        """Takes a delivery fact."""
        entry = self._entries.get((lease.lease_id, lease.writer))
        if entry is not None:
            entry.lineage.deliver(completion_id, is_delivered=is_delivered)

    def closed(self, lease: Lease) -> None:
        """A lease is sealed: nothing goes on from its calls here."""
        entry = self._entries.pop((lease.lease_id, lease.writer), None)
        if entry is not None:
            self.size_bytes -= entry.counted_bytes
            if entry.rebuilding is not None:
                entry.rebuilding.is_dropped = True
                entry.rebuilding.done.set()

    def describe(self) -> dict[str, int]:
        """Numbers for health."""
        return {
            "leases": len(self._entries),
            "bytes": self.size_bytes,
            "evicted": self.evicted,
            "rebuilding": sum(e.is_waiting for e in self._entries.values()),
            "with_gap": sum(e.lineage.has_gap for e in self._entries.values()),
        }

    def _entry(self, lease: Lease) -> _Entry:
        key = (lease.lease_id, lease.writer)
        if key not in self._entries:
            if lease.state is LeaseState.SEALED:
                # A request that was under way meanwhile: it becomes no call, and nothing is kept for it.
                return _Entry(lease, None, 0, Lineage(lease.spec.policy_id, has_gap=True))
            self.opened(lease, takes_over=0)
        entry = self._entries[key]
        self._entries.move_to_end(key)
        if entry.is_evicted:
            entry.is_evicted = False
            self._rebuild(entry, own_seq=lease.last_seq)
        return entry

    def _rebuild(self, entry: _Entry, *, own_seq: int) -> None:
        if self._rebuilder is None:
            entry.lineage.has_gap = True
            return
        entry.rebuilding = Rebuilding(entry.lease, entry.lineage, entry.takes_over, own_seq, entry.since_ms)
        self._rebuilder.begin(entry.rebuilding)

    def _count(self, entry: _Entry) -> None:
        if self._entries.get((entry.lease.lease_id, entry.lease.writer)) is not entry:
            return  # it was closed while someone waited for it
        size = entry.lineage.size_bytes
        self.size_bytes += size - entry.counted_bytes
        entry.counted_bytes = size

    def _make_room(self, *, but: _Entry) -> None:
        if self._rebuilder is None:
            return
        for entry in list(self._entries.values()):
            if self.size_bytes <= self._max_bytes:
                return
            if entry is not but and self._can_go(entry):
                entry.lineage, entry.rebuilding, entry.is_evicted = Lineage(entry.lease.spec.policy_id), None, True
                self._count(entry)
                self.evicted += 1
                log.info("lineage.evicted", session_id=entry.lease.session_id, bytes=self.size_bytes)

    def _can_go(self, entry: _Entry) -> bool:
        """Whether everything that it holds can be read back: all on the log, nothing running, nothing missing."""
        if entry.is_evicted or entry.is_waiting or entry.lineage.has_gap or entry.lease.unrecorded:
            return False
        return bool(entry.counted_bytes) and self._is_relayed(entry.lease.session_id)
