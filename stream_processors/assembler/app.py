"""The assembler on Kafka: grows the leases of running sessions and publishes one trajectory per closed lease."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final

import structlog

from bus import Bus, Delivery, PoisonError, Start
from bus.claims import resolve_value
from schemas.codec import decode
from schemas.records import CompletionDelivery, CompletionRecord, Record
from stream_processors.app import Table, drop
from stream_processors.assembler.core import Step, apply, assemble, close, record_keys
from stream_processors.assembler.grown import GrownLeases
from stream_processors.assembler.row import SessionRow
from stream_processors.builders import Lease

_log = structlog.get_logger(__name__)

REREAD_MARGIN_MS: Final = 60_000
"""Clocks of proxy and broker may differ: a session's records are looked for from a minute before its lease opened."""


class Assembler:
    """capture.completions + rollout.sessions → trajectory.built.

    Table `records` holds the bytes of each call's facts as they stand on the log (a large call's is its claim check),
    under a key of its own, so that the changelog grows by the record; `sessions` holds one small row per session. In memory
    the leases of running sessions grow with each record, so that closing one costs what it puts out.
    """

    name = "assembler"
    topics: Sequence[str] = ("capture.completions", "rollout.sessions")
    table_names: Sequence[str] = ("records", "sessions")
    by_header: Collection[str] = ()

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._records: Table = {}
        self._sessions: Table = {}
        self._grown = GrownLeases()
        self.late = 0
        self.built = 0

    def bind(self, tables: dict[str, Table]) -> None:
        """Take the tables of a fresh app."""
        self._records, self._sessions = tables["records"], tables["sessions"]
        self._grown.clear()

    def done(self, delivery: Delivery) -> None:
        """Nothing keeps account of that."""

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Nothing runs beside the agent."""
        return ()

    def assigned(self, partitions: Collection[int]) -> None:
        """What grew here may go on growing elsewhere, and come back: only the tables know."""
        del partitions
        self._grown.clear()

    async def handle(self, delivery: Delivery, raw: bytes) -> None:
        """Apply one fact; publish the trajectories of the leases that it closes, or the revision that it makes."""
        fact = delivery.decode()
        session_id = _session_of(fact)
        before = SessionRow.from_bytes(self._sessions.get(session_id.encode()))
        step = apply(before, fact)
        if step.is_forgotten:
            self._forget(before, session_id)
            return
        self._keep(step, session_id, raw, fact)
        if isinstance(fact, CompletionRecord | CompletionDelivery) and step.keep:
            self._grow(before, session_id, fact, len(delivery.value))
        if step.is_late:
            self.late += 1
            _log.warning("record.late", session_id=session_id, offset=delivery.offset, late=self.late)
        self._sweep(step.row, session_id, str(getattr(fact, "lease_id", "")))
        for lease_id in step.closing:
            await self._close(session_id, lease_id, delivery)
        if step.revising:
            await self._revise(step.row, session_id, step.revising, delivery)

    def _keep(self, step: Step, session_id: str, raw: bytes, fact: Record) -> None:
        if step.keep:
            place = step.keep.encode()
            known = self._records.get(place)
            if known is not None and known != raw and isinstance(fact, CompletionRecord):
                raise PoisonError("id_conflict", f"another record under the same call: {step.keep}")
            if known is None:
                self._records[place] = raw
        self._put(session_id, step.row)

    def _put(self, session_id: str, row: SessionRow) -> None:
        key, value = session_id.encode(), row.to_bytes()
        if self._sessions.get(key) != value:
            self._sessions[key] = value

    def _grow(
        self, before: SessionRow, session_id: str, fact: CompletionRecord | CompletionDelivery, wire_bytes: int
    ) -> None:
        """Add a fact to its lease in memory, if that is whole there: from its first fact on."""
        grown = self._grown.get(session_id, fact.lease_id)
        if grown is None:
            known = before.leases.get(fact.lease_id)
            if known is not None and any(True for _ in known.calls()):
                return
            grown = Lease()
        grown.add(fact)
        self._grown.put(session_id, fact.lease_id, grown, wire_bytes)

    async def _close(self, session_id: str, lease_id: str, delivery: Delivery) -> None:
        row = SessionRow.from_bytes(self._sessions.get(session_id.encode()))
        grown = self._grown.get(session_id, lease_id) or await self._read_kept(row, session_id, lease_id)
        lease = row.leases[lease_id]
        if lease.gaps() or not lease.known() <= grown.numbers():
            # The tables are a cache, and a crash can lose either one's last writes without the other's; before anything
            # counts as missing, the log is asked.
            row = await self._reread(row, session_id, lease_id, grown)
            self._put(session_id, row)
        await self._publish(row, session_id, lease_id, grown, delivery)
        self._grown.drop(session_id, lease_id)

    async def _revise(self, row: SessionRow, session_id: str, lease_id: str, delivery: Delivery) -> None:
        """Say again what a closed lease holds, from the log: its kept records are gone."""
        grown = Lease()
        row = await self._reread(row, session_id, lease_id, grown)
        if row.leases[lease_id].known() <= grown.numbers():
            await self._publish(row, session_id, lease_id, grown, delivery)
        else:
            _log.error("revision.impossible", session_id=session_id, lease_id=lease_id, reason="its calls left the log")

    async def _publish(self, row: SessionRow, session_id: str, lease_id: str, grown: Lease, delivery: Delivery) -> None:
        # Merging a long session takes longer than the event loop may stand still.
        trajectory = await asyncio.to_thread(assemble, row, session_id, lease_id, grown, delivery.timestamp_ms)
        if trajectory.content_digest != row.leases[lease_id].closed:
            await self._bus.publish(trajectory)
            self.built += 1
            _log.info(
                "trajectory.built",
                session_id=session_id,
                lease_id=lease_id,
                revision=trajectory.revision,
                calls=trajectory.counts.calls,
            )
            row = close(row, lease_id, trajectory.content_digest)
        self._put(session_id, row)
        self._sweep(row, session_id, lease_id)

    async def _read_kept(self, row: SessionRow, session_id: str, lease_id: str) -> Lease:
        raws = (self._records.get(k.encode()) for k in record_keys(row, session_id, lease_id))
        values = [await resolve_value(raw, self._bus.blobs) for raw in raws if raw]
        return await asyncio.to_thread(_grow_from, values)

    def _sweep(self, row: SessionRow, session_id: str, lease_id: str) -> None:
        """Drop what is still kept of a closed lease; also again later, since a crash may have lost the deletions only."""
        lease = row.leases.get(lease_id)
        if lease is not None and lease.closed:
            for place in record_keys(row, session_id, lease_id):
                drop(self._records, place.encode())

    def _forget(self, row: SessionRow, session_id: str) -> None:
        """The session's retention is over: nothing of it stays."""
        for lease_id in row.leases:
            for place in record_keys(row, session_id, lease_id):
                drop(self._records, place.encode())
            self._grown.drop(session_id, lease_id)
        drop(self._sessions, session_id.encode())

    async def _reread(self, row: SessionRow, session_id: str, lease_id: str, grown: Lease) -> SessionRow:
        """The row, completed by what the log holds of this lease, which `grown` gets, too."""
        topic = "capture.completions"
        partition = await self._bus.partition_for(topic, session_id)
        opened_at = row.leases[lease_id].opened_at
        start: Start = max(0, opened_at - REREAD_MARGIN_MS) if opened_at else "earliest"
        async for delivery in self._bus.tail([topic], start=start, partitions=[partition], until_end=True):
            if delivery.key != session_id.encode() or delivery.headers.get("lease_id") != lease_id.encode():
                continue
            try:
                fact = delivery.decode()
                row = apply(row, fact).row
            except Exception as error:  # noqa: BLE001 - a poison record here was buried when the agent met it
                _log.warning("record.unreadable", where=delivery.where, error=repr(error))
                continue
            if isinstance(fact, CompletionDelivery) or (
                # Of two records under one number the first stands.
                isinstance(fact, CompletionRecord) and (fact.writer, fact.call_seq) not in grown.numbers()
            ):
                grown.add(fact)
        return row


def _session_of(fact: Record) -> str:
    session_id = getattr(fact, "session_id", "")
    if not session_id or not isinstance(session_id, str):
        raise PoisonError("no_session", f"{fact.NAME} names no session")
    return session_id


def _grow_from(values: list[bytes]) -> Lease:
    facts = (decode(value) for value in values)
    return Lease(f for f in facts if isinstance(f, CompletionRecord | CompletionDelivery))
