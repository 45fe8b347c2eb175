"""A trainer's registration on trainer.consumed: once at the start, then as a heartbeat."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import structlog

from bus import Bus
from bus.errors import BusError
from schemas.records import TrainerRegistered

_log = structlog.get_logger(__name__)


def now_ms() -> int:
    """UTC epoch ms."""
    return time.time_ns() // 1_000_000


class Registration:
    """Says what a trainer reads, so that the orchestrator knows for whom it produces and how far ahead it may."""

    def __init__(self, bus: Bus, record: TrainerRegistered) -> None:
        self._bus = bus
        self._record = dataclasses.replace(record, started_at=now_ms())

    async def publish(self) -> None:
        """Say it now; raises BusError."""
        await self._bus.publish(dataclasses.replace(self._record, at=now_ms()))

    async def beat(self) -> None:
        """Say it again until cancelled; an outage only costs beats."""
        while True:
            await asyncio.sleep(self._record.ttl_s / 3)  # two may be lost before anybody thinks the trainer is gone
            try:
                await self.publish()
            except BusError as error:
                _log.warning("heartbeat.failed", trainer_id=self._record.trainer_id, error=repr(error))
