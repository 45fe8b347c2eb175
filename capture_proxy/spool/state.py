"""What a spool's entries say about leases and calls: a pure fold, the same for the writer and for whoever reads after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from capture_proxy.spool.frames import Kind, pack_u64, unpack_u64
from schemas.codec import decode, encode
from schemas.records import CompletionRecord, Record, SessionOpened, SessionSealed


@dataclass(slots=True)
class OpenLease:
    """A lease that was opened and not sealed: its opening, the last call number given, and its calls without a record."""

    opened: SessionOpened
    last_seq: int = 0
    started: dict[int, CompletionRecord] = field(default_factory=dict)
    seen_at: int = 0
    """The latest time (UTC epoch ms) that any entry of this lease mentions."""


class SpoolState:
    """The open leases and unfinished calls of one proxy incarnation."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, int], OpenLease] = {}

    def apply(self, kind: Kind, record: Record, last_seq: int = 0) -> None:
        """Takes one entry into account; applying an entry again changes nothing."""
        if isinstance(record, SessionOpened):
            lease = self.leases.setdefault(
                (record.lease_id, record.writer), OpenLease(record, seen_at=record.opened_at)
            )
            lease.last_seq = max(lease.last_seq, last_seq)
            return
        if isinstance(record, SessionSealed):
            self.leases.pop((record.lease_id, record.writer), None)
            return
        if not isinstance(record, CompletionRecord):
            return
        found = self.leases.get((record.lease_id, record.writer))
        if found is None:
            return
        found.last_seq = max(found.last_seq, record.call_seq)
        found.seen_at = max(found.seen_at, record.started_at, record.finished_at)
        if kind is Kind.RECORD:
            found.started.pop(record.call_seq, None)
        else:
            found.started[record.call_seq] = record

    def apply_body(self, kind: Kind, body: bytes) -> Record | None:
        """Takes a frame as read from disk into account; returns its record, or None for a frame without one."""
        if kind is Kind.ACKED:
            return None
        last_seq = 0
        if kind is Kind.CARRIED_LEASE:
            last_seq, body = unpack_u64(body)
        record = decode(body)
        self.apply(kind, record, last_seq)
        return record

    def carried(self) -> Iterator[tuple[Kind, bytes]]:
        """The entries that stand for this state at the head of a new segment."""
        for lease in self.leases.values():
            yield Kind.CARRIED_LEASE, pack_u64(lease.last_seq) + encode(lease.opened).value
            for call in lease.started.values():
                yield Kind.CARRIED_CALL, encode(call).value
