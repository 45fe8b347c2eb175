"""The orchestrator on Kafka: one agent that changes rows on facts, and a timer that turns clocks, beats and lags into facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

import structlog

from bus import Bus, Delivery, PoisonError
from bus.claims import resolve, resolve_value
from schemas.codec import decode
from schemas.records import (
    BatchConsumed,
    GroupEvent,
    Record,
    SessionEvent,
    TaskRequest,
    TrainerRegistered,
)
from schemas.records import GroupEventType as GroupFact
from schemas.records import SessionEventType as Fact
from stream_processors.app import Table
from stream_processors.orchestrator import results
from stream_processors.orchestrator.books import TOGETHER, GroupBooks, SessionBooks
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.groups.core import wants_requeue
from stream_processors.orchestrator.groups.outputs import outputs as group_outputs
from stream_processors.orchestrator.groups.states import GroupStage
from stream_processors.orchestrator.outputs import outputs
from stream_processors.orchestrator.tasks import register
from stream_processors.orchestrator.timer import Timer
from stream_processors.orchestrator.views import Views
from stream_processors.settings import ProcessorSettings

_log = structlog.get_logger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Orchestrator:
    """rollout.{tasks,groups,sessions}, trainer.consumed, headers of trajectory.{built,scored} → commands, facts, rollout.state.

    Tables: `sessions` and `groups` hold one row each, `tasks` and `group_tasks` the bytes of the fact that registered it.
    Views of rollout.{nodes,control,groups} and trainer.consumed beside it.
    """

    name = "orchestrator"
    topics: Sequence[str] = (
        "rollout.sessions",
        "rollout.groups",
        "rollout.tasks",
        "trainer.consumed",
        "trajectory.built",
        "trajectory.scored",
    )
    table_names: Sequence[str] = ("sessions", "tasks", "groups", "group_tasks")
    by_header: Collection[str] = ("trajectory.built", "trajectory.scored")

    def __init__(self, bus: Bus, settings: ProcessorSettings, *, clock: Callable[[], int] = _now_ms) -> None:
        self._bus = bus
        self.views = Views(bus, self.name, lease_ttl_ms=int(settings.lease_ttl_s * 1000), clock=clock)
        self._sessions = SessionBooks()
        self._groups = GroupBooks()
        self._timer = Timer(bus, settings, self.views, self._sessions, self._groups, clock=clock)

    @property
    def fleet(self) -> FleetView:
        """The workers, as their heartbeats tell."""
        return self.views.fleet

    def bind(self, tables: dict[str, Table]) -> None:
        """Take the tables of a fresh app."""
        self._sessions.bind(tables["sessions"], tables["tasks"])
        self._groups.bind(tables["groups"], tables["group_tasks"])

    def assigned(self, partitions: Collection[int]) -> None:
        """Other rows are ours: silence of their workers means nothing before a full period of reading."""
        self._sessions.assigned(partitions)
        self._groups.assigned(partitions)
        self.views.assigned()

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The views, and the timer."""
        return (*self.views.reading(), self._timer.run())

    def done(self, delivery: Delivery) -> None:
        """Its lag is part of how far silence can be trusted."""
        self.views.handled(delivery)

    def due(self) -> list[Record]:
        """The facts that are due now and weren't published a moment ago."""
        return self._timer.due()

    async def handle(self, delivery: Delivery, raw: bytes) -> None:
        """Take one record; everything that it causes is acknowledged when this returns."""
        if delivery.topic in self.by_header:
            await self._note_result(delivery)
            return
        record = delivery.decode()
        if isinstance(record, TaskRequest):
            await self._bus.publish(register(record, delivery.timestamp_ms))
        elif isinstance(record, GroupEvent) and record.group_id:
            await self._change_group(record, delivery, raw)
        elif isinstance(record, SessionEvent) and record.session_id:
            await self._change_session(record, delivery, raw)
        elif isinstance(record, BatchConsumed):
            await self._publish(results.requeue_requests(record, wants_requeue))
        elif not isinstance(record, TrainerRegistered):
            raise PoisonError("not_a_fact", f"a {record.NAME} on {delivery.where} is no fact of a session or a group")

    async def _change_session(self, fact: SessionEvent, delivery: Delivery, raw: bytes) -> None:
        if fact.type is Fact.FORGOTTEN:
            if self._sessions.forget(fact.session_id):
                # Also when the row is gone already: a crash may have cost the tombstone.
                await self._bus.publish_raw("rollout.state", fact.session_id.encode(), None)
                _log.info("session.forgotten", session_id=fact.session_id)
            return
        if fact.type is Fact.DECLINED:
            self.fleet.mark_full(fact.worker_id, fact.incarnation)
        row = self._sessions.apply(fact, delivery, raw)
        if row is None:
            return
        first = self._sessions.first(fact.session_id)
        if first is None and fact.type is not Fact.REGISTERED:
            return  # its books were closed after this: what it caused is told
        registered = decode(await resolve_value(first or raw, self._bus.blobs))
        assert isinstance(registered, SessionEvent)
        await self._publish_by_topic(outputs(row, fact, registered))

    async def _change_group(self, fact: GroupEvent, delivery: Delivery, raw: bytes) -> None:
        if fact.type is GroupFact.FORGOTTEN:
            self._groups.forget(fact.group_id)
            return
        row = self._groups.apply(fact, delivery, raw)
        if row is None:
            return
        if row.stage is GroupStage.WAITING:
            self._timer.nudge()
        first = self._groups.first(fact.group_id)
        registered = decode(await resolve_value(first or raw, self._bus.blobs))
        assert isinstance(registered, GroupEvent)
        for batch in group_outputs(row, fact, registered):
            await self._publish(batch)

    async def _note_result(self, delivery: Delivery) -> None:
        """A trajectory closes the books of its lease's seal; a score counts in its group."""
        of = results.built if delivery.topic == "trajectory.built" else results.scored
        fact = of(delivery.headers, delivery)
        if fact is None and not delivery.is_tombstone:
            # From before results were told in headers, or no record of ours, which decoding tells.
            record = (await resolve(delivery, self._bus.blobs)).decode()
            fact = of(results.headers_of(record), delivery)
        if fact is not None:
            await self._bus.publish(fact)

    async def _publish_by_topic(self, records: Sequence[Record]) -> None:
        """Publish records in order within each topic, the topics side by side: nobody sees an order between two of them."""
        by_topic: dict[str, list[Record]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)

        async def in_order(of_one: list[Record]) -> None:
            for record in of_one:
                await self._bus.publish(record)

        # Each is waited for, also when another failed: what is tried again mustn't meet its own first try.
        for result in await asyncio.gather(*map(in_order, by_topic.values()), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _publish(self, records: Iterable[Record]) -> None:
        """Publish records whose order doesn't matter; one by one a large group would take minutes."""
        waiting = list(records)
        for start in range(0, len(waiting), TOGETHER):
            await asyncio.gather(*(self._bus.publish(r) for r in waiting[start : start + TOGETHER]))
