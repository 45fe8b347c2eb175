"""The assembler on Kafka: keeps the capture records of open leases and publishes one trajectory per closed lease."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final

import structlog

from bus import Bus, Delivery, PoisonError, Start
from bus.claims import resolve_value
from schemas.codec import decode
from schemas.records import CompletionDelivery, CompletionRecord, Record, Trajectory
from stream_processors.app import Table, drop
from stream_processors.assembler.core import Step, apply, assemble, close, record_key, record_keys
from stream_processors.assembler.row import SessionRow
from stream_processors.builders import Lease

_log = structlog.get_logger(__name__)

REREAD_MARGIN_MS: Final = 60_000
"""Clocks of proxy and broker may differ: a session's records are looked for from a minute before its lease opened."""


class Assembler:
    """capture.completions + rollout.sessions → trajectory.built.

    Table `records` holds the bytes of each call's facts as they stand on the log (a large call's is its claim check),
    under a key of its own, so that the changelog grows by the record; `sessions` holds one small row per session.
    """

    name = "assembler"
    topics: Sequence[str] = ("capture.completions", "rollout.sessions")
    table_names: Sequence[str] = ("records", "sessions")

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._records: Table = {}
        self._sessions: Table = {}
        self.late = 0
        self.built = 0

    def bind(self, tables: dict[str, Table]) -> None:
        """Take the tables of a fresh app."""
        self._records, self._sessions = tables["records"], tables["sessions"]

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Nothing runs beside the agent."""
        return ()

    def assigned(self, partitions: Collection[int]) -> None:
        """Nothing depends on which partitions are ours."""

    async def handle(self, delivery: Delivery, raw: bytes) -> None:
        """Apply one fact; publish the trajectories of the leases that it closes."""
        fact = delivery.decode()
        session_id = _session_of(fact)
        key = session_id.encode()
        step = apply(SessionRow.from_bytes(self._sessions.get(key)), fact)
        self._keep(step, key, raw, fact)
        if step.is_late:
            self.late += 1
            _log.warning("record.late", session_id=session_id, offset=delivery.offset, late=self.late)
        self._sweep(step.row, session_id, str(getattr(fact, "lease_id", "")))
        for lease_id in step.closing:
            await self._close(session_id, lease_id, delivery)

    def _keep(self, step: Step, key: bytes, raw: bytes, fact: Record) -> None:
        if step.keep:
            place = step.keep.encode()
            known = self._records.get(place)
            if known is not None and known != raw and isinstance(fact, CompletionRecord):
                raise PoisonError("id_conflict", f"another record under the same call: {step.keep}")
            if known is None:
                self._records[place] = raw
        value = step.row.to_bytes()
        if self._sessions.get(key) != value:
            self._sessions[key] = value

    async def _close(self, session_id: str, lease_id: str, delivery: Delivery) -> None:
        key = session_id.encode()
        row = SessionRow.from_bytes(self._sessions.get(key))
        raws = {k: raw for k in record_keys(row, session_id, lease_id) if (raw := self._records.get(k.encode()))}
        if row.leases[lease_id].gaps() or _is_short(row, session_id, lease_id, raws):
            # The tables are a cache; before anything counts as missing, the log is asked.
            row, raws = await self._reread(row, session_id, lease_id, raws)
            self._sessions[key] = row.to_bytes()
        values = [await resolve_value(raw, self._bus.blobs) for raw in raws.values()]
        # Decoding and merging a long session takes longer than the event loop may stand still.
        trajectory = await asyncio.to_thread(_assemble, row, session_id, lease_id, values, delivery.timestamp_ms)
        await self._bus.publish(trajectory)
        self.built += 1
        _log.info("trajectory.built", session_id=session_id, lease_id=lease_id, calls=trajectory.counts.calls)
        row = close(SessionRow.from_bytes(self._sessions.get(key)), lease_id, trajectory.content_digest)
        self._sessions[key] = row.to_bytes()
        self._sweep(row, session_id, lease_id)

    def _sweep(self, row: SessionRow, session_id: str, lease_id: str) -> None:
        """Drop what is still kept of a closed lease; also again later, since a crash may have lost the deletions only."""
        lease = row.leases.get(lease_id)
        if lease is not None and lease.closed:
            for place in record_keys(row, session_id, lease_id):
                drop(self._records, place.encode())

    async def _reread(
        self, row: SessionRow, session_id: str, lease_id: str, raws: dict[str, bytes]
    ) -> tuple[SessionRow, dict[str, bytes]]:
        """The row and the kept bytes, completed by what the log holds of this lease."""
        topic = "capture.completions"
        partition = await self._bus.partition_for(topic, session_id)
        opened_at = row.leases[lease_id].opened_at
        start: Start = max(0, opened_at - REREAD_MARGIN_MS) if opened_at else "earliest"
        found = dict(raws)
        async for delivery in self._bus.tail([topic], start=start, partitions=[partition], until_end=True):
            if delivery.key != session_id.encode() or delivery.headers.get("lease_id") != lease_id.encode():
                continue
            try:
                step = apply(row, delivery.decode())
            except Exception as error:  # noqa: BLE001 - a poison record here was buried when the agent met it
                _log.warning("record.unreadable", where=delivery.where, error=repr(error))
                continue
            row = step.row
            if step.keep:
                found.setdefault(step.keep, delivery.value)
        return row, found


def _session_of(fact: Record) -> str:
    session_id = getattr(fact, "session_id", "")
    if not session_id or not isinstance(session_id, str):
        raise PoisonError("no_session", f"{fact.NAME} names no session")
    return session_id


def _is_short(row: SessionRow, session_id: str, lease_id: str, raws: dict[str, bytes]) -> bool:
    """Whether a call that the row knows isn't kept: a crash can lose either table's last writes without the other's."""
    lease = row.leases[lease_id]
    return any(
        lease.writers[writer].has(seq) and record_key(session_id, lease_id, writer, seq, "c") not in raws
        for writer, seq in lease.calls()
    )


def _assemble(row: SessionRow, session_id: str, lease_id: str, values: list[bytes], built_at: int) -> Trajectory:
    facts = [decode(value) for value in values]
    calls = [f for f in facts if isinstance(f, CompletionRecord | CompletionDelivery)]
    return assemble(row, session_id, lease_id, Lease(calls), built_at)
