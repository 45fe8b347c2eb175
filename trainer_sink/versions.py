"""Which weights are current: the versions of every policy as `policy.timeline` tells them, and what the trainer itself says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

import structlog

from bus import Bus
from bus.deliveries import Delivery, Start
from bus.errors import BusError, BusUnavailableError
from schemas import MalformedRecordError, UnknownSchemaIdError
from schemas.records import PolicyEvent, PolicyEventType, ScoredTrajectory
from trainer_sink.policies.timeline import PolicyTimeline
from trainer_sink.staleness import Staleness, VersionOrder, staleness_of

_log = structlog.get_logger(__name__)

TOPIC: Final = "policy.timeline"
CATCH_UP_S: Final = 60.0
"""How long reading the timeline to its end may take: it holds a few events per push."""
PAUSE_S: Final = 1.0


class Versions:
    """The order of versions by policy. `own` is what the trainer says that it has now; without it the last published one counts."""

    def __init__(self) -> None:
        self.own = ""
        self._timelines: dict[str, PolicyTimeline] = {}
        self._orders: dict[str, VersionOrder] = {}

    def order(self, policy_id: str) -> VersionOrder:
        """A policy's versions, as far as they were read."""
        return self._orders.setdefault(policy_id, VersionOrder())

    def take(self, event: PolicyEvent, offset: int) -> None:
        """Note an event of the timeline; only what the policy's owner published counts."""
        timeline = self._timelines.setdefault(event.policy_id, PolicyTimeline(event.policy_id))
        before = len(timeline.versions)
        timeline.apply(event, offset)
        if event.type is PolicyEventType.PUBLISHED and len(timeline.versions) > before:
            newest = timeline.versions[-1]
            if newest.is_valid:
                self.order(event.policy_id).add(newest.version)

    def staleness(self, policy_id: str, scored: Iterable[ScoredTrajectory]) -> Staleness:
        """How old the trained tokens of some sessions are now."""
        return staleness_of(scored, self.order(policy_id), self.own)


class TimelineFollower:
    """Feeds `Versions` from the log: to its end first, then along."""

    def __init__(self, bus: Bus, versions: Versions, policy_id: str | None) -> None:
        self._bus = bus
        self._versions = versions
        self._policy_id = policy_id
        self._next: dict[tuple[str, int], int] = {}

    async def catch_up(self) -> None:
        """Read what stands there now; raises BusError when Kafka doesn't give it in time, UnknownSchemaIdError (upgrade)."""
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await self._read(until_end=True)
        except TimeoutError as late:
            raise BusUnavailableError(
                f"{TOPIC} wasn't read to its end within {CATCH_UP_S:.0f} s: see whether Kafka runs"
            ) from late

    async def run(self) -> None:
        """Read along until cancelled. While it can't, the newest version that is known stays the current one."""
        while True:
            try:
                await self._read(until_end=False)
            except (BusError, UnknownSchemaIdError) as error:
                _log.warning("timeline.interrupted", error=repr(error))
            await asyncio.sleep(PAUSE_S)

    async def _read(self, *, until_end: bool) -> None:
        partitions = None
        if self._policy_id is not None:
            partitions = [await self._bus.partition_for(TOPIC, self._policy_id)]
        start: Start = self._next or "earliest"
        tail = self._bus.tail([TOPIC], start=start, partitions=partitions, until_end=until_end)
        async with aclosing(tail) as deliveries:
            async for delivery in deliveries:
                self._take(delivery)

    def _take(self, delivery: Delivery) -> None:
        place = (delivery.topic, delivery.partition)
        if delivery.offset < self._next.get(place, 0):
            return
        try:
            record = None if delivery.is_tombstone else delivery.decode()
        except MalformedRecordError as error:  # the proxies, which read it too, set it aside
            _log.warning("timeline.unreadable", where=delivery.where, error=str(error))
            record = None
        if isinstance(record, PolicyEvent):
            self._versions.take(record, delivery.offset)
        self._next[place] = delivery.offset + 1
