"""Leases off a log, whole: every call from a point in time on, with the earlier calls that its deltas build on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from bus import Delivery, Start, is_retriable
from bus.protocol import LogReader
from schemas.records import CompletionDelivery, CompletionRecord, Record, SessionOpened
from schemas.resolve import ResolvedCall, Resolver

TOPIC: Final = "capture.completions"

_LOOK_BACK_MS: Final = 3_600_000
"""How long before a point in time its leases' openings are looked for first; most sessions are shorter."""
_FARTHER: Final = 8
"""How many times farther each next look goes."""
_LOOKS: Final = 4
"""An hour, 8 hours, 64 hours, three weeks; what isn't found then is looked for from the beginning of the log."""


@dataclass(slots=True)
class OpenLease:
    """One lease until its last record: its calls, where they stand, and what is known of their deliveries.

    Calls before offset `begin` are there for the deltas of those behind it.
    """

    begin: int = 0
    resolver: Resolver = field(default_factory=Resolver)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    delivered: dict[str, bool] = field(default_factory=dict)
    unreadable: int = 0

    def calls(self) -> list[ResolvedCall]:
        """The calls from `begin` on, in the order of the lease."""
        known = (c for c in self.resolver.calls.values() if self.places[c.record.completion_id][1] >= self.begin)
        return sorted(known, key=lambda c: c.place)

    def take(self, delivery: Delivery) -> None:
        """Takes the next record; poison is counted, an unknown schema raised."""
        try:
            record: Record = delivery.decode()
        except Exception as error:  # the record's boundary: an export counts poison, consumers set it aside
            if is_retriable(error):
                raise
            self.unreadable += delivery.offset >= self.begin
            return
        if isinstance(record, CompletionRecord):
            self.resolver.add(record)
            self.places.setdefault(record.completion_id, (delivery.partition, delivery.offset))
        elif isinstance(record, CompletionDelivery):
            known = self.delivered.get(record.completion_id, False)
            self.delivered[record.completion_id] = known or record.delivered


async def read_leases(log: LogReader, start: Start, session_id: str | None) -> AsyncGenerator[OpenLease, None]:
    """Each lease that has a record from `start` on, once its last one is read: only leases that overlap are in memory."""
    for partition in sorted(await log.end_offsets(TOPIC)):
        begin: int | None = None
        last: dict[bytes, int] = {}
        async for delivery in _read(log, start, partition, session_id, resolved=False):
            begin = delivery.offset if begin is None else begin
            last[_lease_of(delivery)] = delivery.offset
        if begin is None:
            continue
        since = await _opening(log, start, partition, session_id, set(last)) if isinstance(start, int) else start
        leases: dict[bytes, OpenLease] = {}
        async for delivery in _read(log, since, partition, session_id):
            name = _lease_of(delivery)
            if name not in last or delivery.offset > last[name]:
                continue  # ended before, or came after the first look
            lease = leases.setdefault(name, OpenLease(begin))
            lease.take(delivery)
            if last[name] == delivery.offset:
                lease.resolver.give_up()
                yield leases.pop(name)


async def _opening(log: LogReader, at: int, partition: int, session_id: str | None, leases: set[bytes]) -> Start:
    """A place from which all of these leases are whole, not much earlier than need be."""
    back = _LOOK_BACK_MS
    for _ in range(_LOOKS):
        missing = set(leases)
        async for delivery in _read(log, max(0, at - back), partition, session_id, resolved=False):
            if _is_opening(delivery):
                missing.discard(_lease_of(delivery))
            if not missing:
                return max(0, at - back)
        back *= _FARTHER
    return "earliest"


async def _read(
    log: LogReader, start: Start, partition: int, session_id: str | None, *, resolved: bool = True
) -> AsyncGenerator[Delivery, None]:
    reading = log.tail([TOPIC], start=start, partitions=[partition], until_end=True, resolved=resolved)
    async with aclosing(reading) as deliveries:
        async for delivery in deliveries:
            if not delivery.is_tombstone and session_id in (None, (delivery.key or b"").decode(errors="replace")):
                yield delivery


def _lease_of(delivery: Delivery) -> bytes:
    return delivery.headers.get("lease_id", b"")


def _is_opening(delivery: Delivery) -> bool:
    """Whether it opens a lease's first writer; a later one goes on from calls that stand before it."""
    headers = delivery.headers
    return headers.get("ce_type", b"").endswith(SessionOpened.NAME.encode()) and headers.get("writer") == b"1"
