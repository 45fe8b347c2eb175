"""Reads `policy.timeline` to its end, again and again, each time only what is new."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import structlog

from bus import Delivery
from bus.protocol import LogReader, Readable
from schemas import MalformedRecordError
from schemas.records import PolicyEvent
from trainer_sink.policies.timeline import PolicyTimeline, RegisteredEngine

_log = structlog.get_logger(__name__)

TOPIC: Final = "policy.timeline"


class Timelines:
    """All policies' timelines, by policy, as far as they were read."""

    def __init__(self) -> None:
        self.by_policy: dict[str, PolicyTimeline] = {}

    def of(self, policy_id: str) -> PolicyTimeline:
        """One policy's; empty where nothing is known of it."""
        return self.by_policy.get(policy_id) or PolicyTimeline(policy_id)

    def take(self, delivery: Delivery) -> None:
        """Applies a record; what can't be decoded is left to those who read the topic for good. Raises UnknownSchemaIdError."""
        try:
            event = None if delivery.is_tombstone else delivery.decode()
        except MalformedRecordError as error:
            _log.warning("timeline.unreadable", where=delivery.where, error=str(error))
            return
        if isinstance(event, PolicyEvent):
            timeline = self.by_policy.setdefault(event.policy_id, PolicyTimeline(event.policy_id))
            timeline.apply(event, delivery.offset)

    def engines(self) -> list[RegisteredEngine]:
        """All engines, policy by policy, in the order in which they were added."""
        return [engine for timeline in self.by_policy.values() for engine in timeline.engines.values()]


async def read_timelines(log: Readable) -> Timelines:
    """All policies' timelines as the log has them now."""
    timelines = Timelines()
    async with aclosing(log.tail([TOPIC], start="earliest", until_end=True)) as deliveries:
        async for delivery in deliveries:
            timelines.take(delivery)
    return timelines


class TimelineReader:
    """Follows the topic from its beginning; `to_end` brings `timelines` up to what the log holds when it is called."""

    def __init__(self, log: LogReader) -> None:
        self.timelines = Timelines()
        self._log = log
        self._next: dict[int, int] = {}
        self._reading = asyncio.Lock()

    async def to_end(self) -> Timelines:
        """Everything that was acknowledged before this call is in. Raises BusError, or UnknownSchemaIdError (upgrade this process)."""
        async with self._reading:
            ends = await self._log.end_offsets(TOPIC)
            behind = [number for number, end in ends.items() if end > self._next.get(number, 0)]
            if not behind:  # opening a reader costs more than asking for the ends
                return self.timelines
            start = {(TOPIC, number): self._next.get(number, 0) for number in behind}
            tail = self._log.tail([TOPIC], start=start, partitions=behind, until_end=True)
            async with aclosing(tail) as deliveries:
                async for delivery in deliveries:
                    self.timelines.take(delivery)
                    self._next[delivery.partition] = delivery.offset + 1
            return self.timelines
