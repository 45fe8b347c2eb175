"""The spool as its users see it: append, wait until durable, refuse when there is no room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from bus import EventLog
from capture_proxy.spool.frames import Kind, pack_u64, unpack_u64
from capture_proxy.spool.journal import Journal, Position, SpoolWriteError, create_directory
from capture_proxy.spool.recovery import unfinished_business
from capture_proxy.spool.relay import Entry, Relay
from capture_proxy.spool.state import SpoolState
from schemas.codec import Encoded, encode
from schemas.records import CompletionRecord, Record

log = structlog.get_logger(__name__)

Durability = Literal["kafka", "fsync"]

# How often acknowledgements are noted and idle entries fsynced: bounds what a restart sends twice.
_HOUSEKEEPING_S: Final = 0.5


class SpoolRefusalError(Exception):
    """No new call may start: there is no room to record it. The message says why."""


class Spool:
    """One incarnation's journal and its relay.

    `commit` is the promise on which a finish is released: Kafka's ack, or the fsync when the ack is later than
    `ack_wait_s`.
    """

    def __init__(
        self,
        bus: EventLog,
        journal: Journal,
        *,
        limit_bytes: int = 2 << 30,
        ack_wait_s: float = 0.05,
        commit_timeout_s: float = 60.0,
    ) -> None:
        self.journal = journal
        self.state = SpoolState()
        self.relay = Relay(bus, journal.read, on_acked=self._acked)
        self.limit_bytes = limit_bytes
        self._ack_wait_s = ack_wait_s
        self._commit_timeout_s = commit_timeout_s
        self._noted_seq = 0
        self._last_record_seq = 0
        self._homeless: set[Entry] = set()
        self._unsent: list[tuple[Position, str]] = []
        self._housekeeper: asyncio.Task[None] | None = None

    @classmethod
    def create(
        cls,
        root: Path,
        name: str,
        bus: EventLog,
        *,
        segment_bytes: int = 64 << 20,
        fsync: Callable[[int], None] = os.fdatasync,
        limit_bytes: int = 2 << 30,
        ack_wait_s: float = 0.05,
        commit_timeout_s: float = 60.0,
    ) -> Spool:
        """A new spool of this incarnation under `root`. Raises OSError when the directory can't be made."""
        directory, lock = create_directory(root, name)
        journal = Journal(directory, lock, segment_bytes=segment_bytes, fsync=fsync)
        journal.rotate(())
        return cls(bus, journal, limit_bytes=limit_bytes, ack_wait_s=ack_wait_s, commit_timeout_s=commit_timeout_s)

    def load(self) -> int:
        """Reads a dead incarnation's spool from disk (blocking, before anything else is done with it); the number of entries."""
        count = 0
        for position, frame in self.journal.scan():
            count += 1
            record = self.state.apply_body(frame.kind, frame.body)
            if frame.kind is Kind.ACKED:
                self._noted_seq = max(self._noted_seq, unpack_u64(frame.body)[0])
            elif frame.kind is Kind.RECORD and record is not None:
                self._unsent.append((position, record.key))
                self._last_record_seq = position.seq
        return count

    def finish_business(self) -> None:
        """After `load`: queues what wasn't acknowledged, and says what the dead incarnation left unsaid."""
        for position, key in self._unsent:
            if position.seq > self._noted_seq:
                self.relay.add(None, key, position, position.size_bytes)
        self._unsent.clear()
        for record in unfinished_business(self.state):
            self.append(record)

    def start(self) -> None:
        """Starts relaying."""
        self.relay.start()
        self._housekeeper = asyncio.create_task(self._keep_house(), name="spool-housekeeper")

    async def stop(self, drain_s: float) -> bool:
        """Relays for up to `drain_s` more, then closes; a fully acknowledged spool is deleted. Says whether it was."""
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            await asyncio.gather(self._housekeeper, return_exceptions=True)
        is_done = await self.relay.stop(drain_s) and not self.state.leases
        if not is_done:
            try:
                self._note_acks()  # so that the next one doesn't send again what Kafka has
            except SpoolWriteError as exc:
                log.warning("spool.write_failed", record="acks", error=str(exc))
        await self.journal.close(is_done=is_done)
        return is_done

    def check_room(self) -> None:
        """Raises SpoolRefusalError when a new call couldn't be recorded."""
        if self.relay.unacked_bytes >= self.limit_bytes:
            raise SpoolRefusalError(
                f"the spool holds {self.relay.unacked_bytes} bytes that Kafka hasn't acknowledged (limit {self.limit_bytes}): "
                f"{self.relay.last_error or 'Kafka is slow'}"
            )
        if self.journal.failure is not None and not self.relay.is_healthy:
            raise SpoolRefusalError(
                f"neither Kafka nor the spool takes records: {self.journal.failure}; {self.relay.last_error}"
            )
        if self._homeless:
            raise SpoolRefusalError("the spool's disk is full, and Kafka hasn't acknowledged what found no room there")

    def describe(self) -> dict[str, Any]:
        """Numbers for health."""
        relay = self.relay
        return {
            "unacked_entries": relay.unacked,
            "unacked_bytes": relay.unacked_bytes,
            "limit_bytes": self.limit_bytes,
            "disk_bytes": self.journal.size_bytes,
            "sent": relay.sent,
            "poisoned": relay.poisoned,
            "is_kafka_taking": relay.is_healthy,
            "last_error": relay.last_error,
        }

    def call_started(self, call: CompletionRecord) -> None:
        """Appends CallStarted, without waiting for the disk. Raises SpoolRefusalError when there is no room for it."""
        try:
            self._put(Kind.STARTED, encode(call).value)
        except SpoolWriteError as exc:
            raise SpoolRefusalError(str(exc)) from exc
        self.state.apply(Kind.STARTED, call)

    def append(self, record: Record, encoded: Encoded | None = None) -> Entry:
        """Appends a record and queues it for Kafka. With a full disk it stays in memory, and only Kafka can make it durable.

        `encoded` is the record's encoding where that was made before, in a thread. Raises MalformedRecordError.
        """
        encoded = encode(record) if encoded is None else encoded
        try:
            position: Position | None = self._put(Kind.RECORD, encoded.value)
            assert position is not None
            self._last_record_seq = position.seq
        except SpoolWriteError as exc:
            log.warning("spool.write_failed", record=record.NAME, key=record.key, error=str(exc))
            position = None
        self.state.apply(Kind.RECORD, record)
        entry = self.relay.add(encoded, record.key, position, len(encoded.value))
        if position is None:
            self._homeless.add(entry)
        return entry

    async def commit(self, record: Record, *, ack_wait_s: float | None = None) -> Durability:
        """Appends a record and returns once it is durable, saying by what. Raises TimeoutError after the commit's deadline."""
        return await self.durable(self.append(record), ack_wait_s=ack_wait_s)

    async def durable(self, entry: Entry, *, ack_wait_s: float | None = None) -> Durability:
        """Waits for an entry's durability; see `commit`."""
        patience = self._ack_wait_s if ack_wait_s is None else ack_wait_s
        try:
            async with asyncio.timeout(patience):
                await entry.acked.wait()
        except TimeoutError:
            pass
        if entry.acked.is_set():
            return "kafka"
        async with asyncio.timeout(self._commit_timeout_s):
            return await self._first_of_both(entry)

    async def _first_of_both(self, entry: Entry) -> Durability:
        acked = asyncio.create_task(entry.acked.wait(), name="spool-acked")
        synced = asyncio.create_task(self._synced(entry), name="spool-synced")
        try:
            await asyncio.wait((acked, synced), return_when=asyncio.FIRST_COMPLETED)
            if not acked.done() and not synced.result():
                await acked
            return "kafka" if acked.done() else "fsync"
        finally:
            for task in (acked, synced):
                task.cancel()
            await asyncio.gather(acked, synced, return_exceptions=True)

    async def _synced(self, entry: Entry) -> bool:
        if entry.position is None:
            return False
        try:
            await self.journal.sync(entry.position.seq)
        except SpoolWriteError:
            return False
        return True

    def _put(self, kind: Kind, body: bytes) -> Position:
        if self.journal.wants_rotation:
            self.journal.rotate(self.state.carried())
        return self.journal.append(kind, body)

    def _acked(self, entry: Entry) -> None:
        self._homeless.discard(entry)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            try:
                await self.tidy()
            except OSError as exc:
                log.warning("spool.housekeeping_failed", error=str(exc))

    def _note_acks(self) -> None:
        acked = self.relay.acked_through(self._last_record_seq)
        if acked > self._noted_seq:
            self._put(Kind.ACKED, pack_u64(acked))
            self._noted_seq = acked
            self.journal.drop_through(acked)

    async def tidy(self) -> None:
        """Notes what Kafka has, drops segments that nobody needs, and fsyncs what is still only in memory."""
        self._note_acks()
        if self.journal.synced_seq < self.journal.last_seq and self.journal.failure is None:
            await self.journal.sync(self.journal.last_seq)
