"""Reads a policy's timeline to its end, again and again, each time only what is new."""

from __future__ import annotations

from contextlib import aclosing

import structlog

from bus import Bus
from schemas import MalformedRecordError
from schemas.records import PolicyEvent
from trainer_sink.policies.timeline import PolicyTimeline

_log = structlog.get_logger(__name__)
TOPIC = "policy.timeline"


class TimelineReader:
    """Follows one policy; `to_end` returns its timeline as the log has it when asked."""

    def __init__(self, bus: Bus, policy_id: str) -> None:
        self.timeline = PolicyTimeline(policy_id)
        self._bus = bus
        self._partition = -1
        self._next = 0

    async def to_end(self) -> PolicyTimeline:
        """The timeline with everything that was acknowledged before this call; raises BusError, or UnknownSchemaIdError (upgrade)."""
        if self._partition < 0:
            self._partition = await self._bus.partition_for(TOPIC, self.timeline.policy_id)
        if (await self._bus.end_offsets(TOPIC))[self._partition] <= self._next:
            return self.timeline
        start = {(TOPIC, self._partition): self._next}
        tail = self._bus.tail([TOPIC], start=start, partitions=[self._partition], until_end=True)
        async with aclosing(tail) as deliveries:
            async for delivery in deliveries:
                try:
                    event = None if delivery.is_tombstone else delivery.decode()
                except MalformedRecordError as error:  # those who read the timeline for good set it aside
                    _log.warning("timeline.unreadable", where=delivery.where, error=str(error))
                    event = None
                if isinstance(event, PolicyEvent):
                    self.timeline.apply(event, delivery.offset)
                self._next = delivery.offset + 1
        return self.timeline


async def read_timeline(bus: Bus, policy_id: str) -> PolicyTimeline:
    """One policy's timeline as the log has it now."""
    return await TimelineReader(bus, policy_id).to_end()
