"""How others learn that a proxy is there: its heartbeat on the bus, and the file with its ports."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from bus import EventLog
from schemas.records import Heartbeat

log = structlog.get_logger(__name__)


class Pulse:
    """Publishes a heartbeat every `every_s` seconds, and at once when something changed. `make(seq)` says what it says."""

    def __init__(self, bus: EventLog, make: Callable[[int], Heartbeat], *, every_s: float) -> None:
        self._bus = bus
        self._make = make
        self._every_s = every_s
        self._seq = 0
        self._now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts beating."""
        self._task = asyncio.create_task(self._beat(), name="heartbeat")

    def beat_now(self) -> None:
        """The next beat comes at once."""
        self._now.set()

    async def stop(self) -> None:
        """Ends it, also when it never began."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            self._now.clear()  # before the beat is made: what changes while it is on its way makes another one
            self._seq += 1
            try:
                async with asyncio.timeout(self._every_s * 5):
                    await self._bus.publish(self._make(self._seq))
            except Exception as exc:  # noqa: BLE001 - the heartbeat's boundary: a missed beat says what it should say
                log.warning("heartbeat.missed", error=repr(exc))
            try:
                async with asyncio.timeout(self._every_s):
                    await self._now.wait()
            except TimeoutError:
                pass


def write_ports(path: Path, ports: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(f".{os.getpid()}.tmp")
    half.write_text(json.dumps(ports))
    half.replace(path)
