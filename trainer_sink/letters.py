"""A sink's dead letters: its topic is named after the trainer, so it is made when the first one is needed."""

from __future__ import annotations

import dataclasses

from bus import Bus, KafkaBus
from bus.admin import TopicAdmin
from bus.dead_letters import DeadLetters
from bus.deliveries import Delivery
from bus.errors import TopicMissingError
from bus.memory import MemoryBus
from schemas.topics import TOPICS, dead_letter_topic


class SinkLetters:
    """Sets aside what one trainer's sink can't read, on `<topic>.sink-<trainer_id>.dead`."""

    def __init__(self, bus: Bus, trainer_id: str) -> None:
        self._bus = bus
        self.component = f"sink-{trainer_id}"
        self._letters = DeadLetters(bus, self.component)

    async def bury(self, delivery: Delivery, error: BaseException) -> None:
        """Publish the raw record with its reason; returns when that is acknowledged."""
        try:
            await self._letters.bury(delivery, error)
        except TopicMissingError:
            await self._declare(delivery.topic)
            await self._letters.bury(delivery, error)

    async def _declare(self, source: str) -> None:
        partitions = len(await self._bus.end_offsets(source))
        topic = dataclasses.replace(dead_letter_topic(TOPICS[source], self.component), partitions=partitions)
        if isinstance(self._bus, MemoryBus):
            self._bus.declare(topic)
        elif isinstance(self._bus, KafkaBus):
            async with TopicAdmin(self._bus.settings) as admin:
                await admin.ensure([topic])
