"""The orchestrator on Kafka: one agent that changes rows on facts, and a timer that turns clocks and beats into facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from bus import Bus, BusError, Delivery, PoisonError, Reader, Start
from bus.claims import resolve_value
from schemas.codec import decode
from schemas.records import Control, Heartbeat, Record, SessionEvent, TaskRequest
from schemas.records import SessionEventType as Fact
from stream_processors.app import Table, drop
from stream_processors.orchestrator.core import apply
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.outputs import outputs
from stream_processors.orchestrator.row import SessionRow
from stream_processors.orchestrator.states import Move
from stream_processors.orchestrator.tasks import register
from stream_processors.orchestrator.tick import Limits, Seen, tick
from stream_processors.settings import ProcessorSettings

_log = structlog.get_logger(__name__)

PENDING_S: Final = 10.0
"""A fact of the timer is published again when the row hasn't moved on after that long."""

PROBE_S: Final = 2.0
"""How long the broker may take to say where the heartbeats end; longer is an outage, after which nobody is declared dead."""

TOGETHER: Final = 200
"""Registrations that are on their way to the broker at a time."""

FORGET_MS: Final = 3_600_000
PUBLISH_DEADLINE_S: Final = 10.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Orchestrator:
    """rollout.tasks + rollout.sessions (+ views of rollout.nodes, rollout.control) → stage commands, facts, rollout.state.

    Table `sessions` holds one row per session, `tasks` the bytes of the fact that registered it.
    """

    name = "orchestrator"
    topics: Sequence[str] = ("rollout.sessions", "rollout.tasks")
    table_names: Sequence[str] = ("sessions", "tasks")

    def __init__(self, bus: Bus, settings: ProcessorSettings, *, clock: Callable[[], int] = _now_ms) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._sessions: Table = {}
        self._tasks: Table = {}
        self._live: dict[str, SessionRow] | None = None
        self._ended: dict[str, int] = {}
        """When sessions ended that are only remembered, in UTC epoch ms."""
        self._mine: frozenset[int] | None = None
        self._pending: dict[str, tuple[SessionEvent, int]] = {}
        self._controls: list[Control] = []
        self._read_to: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.fleet = FleetView()

    def bind(self, tables: dict[str, Table]) -> None:
        """Take the tables of a fresh app."""
        self._sessions, self._tasks = tables["sessions"], tables["tasks"]
        self._live = None

    def assigned(self, partitions: Collection[int]) -> None:
        """Other rows are ours: silence of their workers means nothing before a full period of reading."""
        self._mine = frozenset(partitions)
        self._live = None
        self.fleet.fresh_since = None

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The views of heartbeats and controls, and the timer."""
        # Of beats only the last matter; controls count until the session that they mean has ended.
        since = max(0, self._clock() - int(self._settings.lease_ttl_s * 1000))
        nodes, controls = self._view("rollout.nodes", since), self._view("rollout.control", "earliest")
        return (nodes.run(), controls.run(), self._keep_time())

    # -- the agent ---------------------------------------------------------------------------------------------------

    async def handle(self, delivery: Delivery, raw: bytes) -> None:
        """Apply one task or one fact; everything that it causes is acknowledged when this returns."""
        record = delivery.decode()
        if isinstance(record, TaskRequest):
            group, *sessions = register(record, delivery.timestamp_ms)
            await self._bus.publish(group)
            for start in range(0, len(sessions), TOGETHER):
                # Different keys: their order doesn't matter, and one by one a large group would take minutes.
                await asyncio.gather(*(self._bus.publish(s) for s in sessions[start : start + TOGETHER]))
            return
        if not isinstance(record, SessionEvent) or not record.session_id:
            raise PoisonError("not_a_fact", f"a {record.NAME} on {delivery.where} is no fact of a session")
        if record.type is Fact.FORGOTTEN:
            await self._forget(record.session_id)
            return
        row = self._apply(record, delivery, raw)
        if row is None:
            return
        registered_raw = self._tasks.get(record.session_id.encode(), raw)
        registered = decode(await resolve_value(registered_raw, self._bus.blobs))
        assert isinstance(registered, SessionEvent)
        for output in outputs(row, record, registered):
            await self._bus.publish(output)

    async def _forget(self, session_id: str) -> None:
        """Leave nothing of an ended session; also when its row is gone already, since a crash may have cost the tombstone."""
        key = session_id.encode()
        value = self._sessions.get(key)
        if value is not None and SessionRow.from_bytes(value).is_live:
            return
        drop(self._sessions, key)
        drop(self._tasks, key)
        self._ended.pop(session_id, None)
        await self._bus.publish_raw("rollout.state", key, None)
        _log.info("session.forgotten", session_id=session_id)

    def _apply(self, fact: SessionEvent, delivery: Delivery, raw: bytes) -> SessionRow | None:
        """Change the row; the row whose outputs are due, None when the fact did nothing."""
        key = fact.session_id.encode()
        value = self._sessions.get(key)
        row = None if value is None else SessionRow.from_bytes(value)
        if row is not None and delivery.offset <= row.version:
            return row if delivery.offset == row.version else None
        if fact.type is Fact.DECLINED:
            self.fleet.mark_full(fact.worker_id, fact.incarnation)
        after = apply(row, fact, delivery.offset, delivery.timestamp_ms)
        if after is None or after is row:
            return None
        after = replace(after, partition=delivery.partition)
        if row is None:
            self._tasks[key] = raw
        self._sessions[key] = after.to_bytes()
        if not after.is_live and after.move == Move.NOTE_OVERDUE:
            drop(self._tasks, key)  # nothing will be published of this session any more
        if self._live is not None and self._is_mine(after):
            self._live[after.session_id] = after
        _log.info(
            "session.moved",
            session_id=after.session_id,
            fact=fact.type,
            move=after.move,
            stage=after.stage,
            attempt=after.attempt,
            status=after.status,
        )
        return after

    def _is_mine(self, row: SessionRow) -> bool:
        """Whether a row's partition is ours (before anybody said which are, all)."""
        return self._mine is None or row.partition in self._mine

    # -- the views ---------------------------------------------------------------------------------------------------

    def _view(self, topic: str, start: Start) -> Reader:
        return Reader(self._bus, self.name, topic, self._see, topics=[topic], start=start, on_interrupted=self._doubt)

    def _doubt(self) -> None:
        """After an outage of the log, silence means nothing before a full period of reading."""
        self.fleet.fresh_since = None

    async def _see(self, delivery: Delivery, record: Record | None) -> None:
        if delivery.topic == "rollout.nodes":
            self._read_to[delivery.partition] = delivery.offset + 1
        if isinstance(record, Heartbeat):
            self.fleet.take(record, self._clock())
        elif isinstance(record, Control):
            # When it was published, whatever its issuer says: it is compared with registrations.
            control = replace(record, at=delivery.timestamp_ms)
            if control not in self._controls:
                self._controls.append(control)

    # -- the timer ---------------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_s)
            await self._probe()
            for fact in self.due():
                try:
                    await self._bus.publish(fact, deadline_s=PUBLISH_DEADLINE_S)
                except BusError as error:
                    _log.warning("fact.unpublished", fact=fact.type, session_id=fact.session_id, error=repr(error))
                    self._pending.pop(fact.event_id, None)
                    break

    async def _probe(self) -> None:
        """Note whether the beats are being read as they come: everything that stood on the log a tick ago has been read."""
        try:
            async with asyncio.timeout(PROBE_S):
                ends = await self._bus.end_offsets("rollout.nodes")
        except (BusError, TimeoutError) as error:
            _log.warning("fleet.unread", error=repr(error))
            self.fleet.fresh_since = None
            return
        is_caught_up = bool(self._ends) and all(self._read_to.get(p, end) >= end for p, end in self._ends.items())
        if not is_caught_up:
            self.fleet.fresh_since = None
        elif self.fleet.fresh_since is None:
            self.fleet.fresh_since = self._clock()
        self._ends = ends

    def due(self) -> list[SessionEvent]:
        """The facts that are due now and weren't published a moment ago."""
        now = self._clock()
        self.fleet.forget(now - FORGET_MS)
        if self._live is None:
            rows = [SessionRow.from_bytes(value) for value in list(self._sessions.values())]
            self._live = {row.session_id: row for row in rows if self._is_mine(row)}
            self._ended = {}
        for row in [row for row in self._live.values() if not row.is_live]:
            self._ended[row.session_id] = row.moved_at
            del self._live[row.session_id]
        self._pending = {
            event_id: (fact, at) for event_id, (fact, at) in self._pending.items() if self._is_pending(fact, at, now)
        }
        settings = self._settings
        limits = Limits(
            lease_ttl_ms=int(settings.lease_ttl_s * 1000),
            seal_grace_ms=int(settings.seal_grace_s * 1000),
            end_grace_ms=int(settings.end_grace_s * 1000),
            command_grace_ms=int(settings.command_grace_s * 1000),
        )
        pending = [fact for fact, _ in self._pending.values()]
        facts = tick(Seen(list(self._live.values()), self.fleet, limits, now, self._controls, pending))
        fresh = [fact for fact in facts if fact.event_id not in self._pending]
        self._pending |= {fact.event_id: (fact, now) for fact in fresh}
        return fresh + self._forgotten(now)

    def _forgotten(self, now: int) -> list[SessionEvent]:
        """The facts that the retention of some sessions is over, not too many at a time; again when they seem lost."""
        before = now - int(self._settings.forget_after_s * 1000)
        over = [name for name, ended_at in self._ended.items() if ended_at <= before][:TOGETHER]
        for session_id in over:
            self._ended[session_id] = before + int(PENDING_S * 1000)
        return [SessionEvent(session_id=name, type=Fact.FORGOTTEN, at=now) for name in over]

    def _is_pending(self, fact: SessionEvent, published_at: int, now: int) -> bool:
        """Whether a fact of ours hasn't been applied yet, as far as its session's row tells."""
        row = (self._live or {}).get(fact.session_id)
        return row is not None and row.moved_at < published_at and now - published_at < PENDING_S * 1000
