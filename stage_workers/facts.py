"""Telling facts in order: a worker that can't reach Kafka goes on, and keeps what it has to tell until it can."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import structlog

from schemas.codec import MalformedRecordError
from schemas.records import Record

log = structlog.get_logger(__name__)

# One try: longer than a producer's own retries within a healthy cluster, short enough to notice a stop.
_TRY_S = 30.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class Publisher(Protocol):
    """The part of a bus that facts need."""

    async def publish(self, record: Record, *, deadline_s: float | None = None) -> object:
        """Publishes a record; returns once it is acknowledged."""


class FactQueue:
    """One line for everything that a worker tells: what was put first is acknowledged first, whatever the topic.

    So a reward is on the log before the fact `graded` that announces it. A record is tried until it is acknowledged; tries may
    repeat one (its id is the same). Only a record that can't be encoded is given up, loudly.
    """

    def __init__(self, bus: Publisher, *, pause_s: float = _FIRST_PAUSE_S) -> None:
        self._bus = bus
        self._pause_s = pause_s
        self._waiting: deque[Record] = deque()
        self._arrived = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self.is_connected = True

    @property
    def backlog(self) -> int:
        """How many facts are still to be acknowledged."""
        return len(self._waiting)

    def put(self, *records: Record) -> None:
        """Puts records at the end of the line; doesn't wait for Kafka."""
        self._waiting.extend(records)
        if self._waiting:
            self._arrived.set()
            self._emptied.clear()

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            await self._arrived.wait()
            while self._waiting:
                await self._send(self._waiting[0])
                self._waiting.popleft()
            self._arrived.clear()
            self._emptied.set()

    async def flush(self, deadline_s: float) -> bool:
        """Waits until the line is empty; False (and a log line) when it wasn't within the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._emptied.wait()
        except TimeoutError:
            log.error("facts.unsent", count=len(self._waiting), first=self._waiting[0].NAME)  # noqa: TRY400  # known
            return False
        return True

    async def _send(self, record: Record) -> None:
        pause_s = self._pause_s
        while True:
            try:
                async with asyncio.timeout(_TRY_S * 2):
                    await self._bus.publish(record, deadline_s=_TRY_S)
            except MalformedRecordError as error:
                log.error("fact.unencodable", record=record.NAME, key=record.key, error=str(error))  # noqa: TRY400  # known
                return
            except Exception as error:  # noqa: BLE001  # record boundary: whatever Kafka's trouble is, the fact must not be lost
                if self.is_connected:
                    log.warning("facts.delayed", record=record.NAME, backlog=len(self._waiting), error=str(error))
                self.is_connected = False
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            if not self.is_connected:
                log.info("facts.flowing", backlog=len(self._waiting))
            self.is_connected = True
            return
