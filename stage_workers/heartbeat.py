"""The worker's heartbeat: that this incarnation lives, what it holds, and how much more it can take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from schemas.records import Heartbeat
from stage_workers.facts import FactQueue, Publisher
from stage_workers.health import Health
from stage_workers.kit import now_ms
from stage_workers.sessions import Holdings
from stage_workers.settings import WorkerSettings

log = structlog.get_logger(__name__)

# After a change the next beat comes early, but not more often than this: many changes make one beat.
_GATHER_S = 0.1


class HeartbeatLoop:
    """Publishes heartbeats by itself, not through the fact queue: an old one is worth nothing once it can be sent again."""

    def __init__(
        self,
        bus: Publisher,
        settings: WorkerSettings,
        incarnation: str,
        *,
        holdings: Holdings,
        facts: FactQueue,
        health: Health,
        details: Mapping[str, object],
    ) -> None:
        """`details` is what else the fleet should know (which runtimes this worker has)."""
        self._bus = bus
        self._settings = settings
        self._incarnation = incarnation
        self._holdings = holdings
        self._facts = facts
        self._health = health
        self._details = dict(details)
        self._seq = 0
        self._changed = asyncio.Event()
        self.is_draining = False
        self.is_heard = asyncio.Event()
        """Set once a first beat was acknowledged."""

    def nudge(self) -> None:
        """Something changed that the orchestrator plans with: beat soon."""
        self._changed.set()

    def beat(self) -> Heartbeat:
        """The next heartbeat."""
        self._seq += 1
        holdings, takes = self._holdings, not self.is_draining
        return Heartbeat(
            node_id=self._settings.worker_id,
            role="worker",
            incarnation=self._incarnation,
            free_init=holdings.free_init if takes else 0,
            free_ready=holdings.free_ready if takes else 0,
            free_run=holdings.free_run,
            free_postrun=holdings.free_postrun,
            holds=[session.held for session in holdings],
            is_draining=self.is_draining,
            interval_s=self._settings.heartbeat_s,
            seq=self._seq,
            details={**self._details, "backlog": self._facts.backlog, "problems": dict(self._health.problems)},
            at=now_ms(),
        )

    async def publish(self) -> bool:
        """Publishes one heartbeat; False when Kafka didn't take it."""
        deadline_s = max(2 * self._settings.heartbeat_s, 1.0)
        try:
            async with asyncio.timeout(2 * deadline_s):
                await self._bus.publish(self.beat(), deadline_s=deadline_s)
        except Exception as error:  # noqa: BLE001  # record boundary: the next beat says it all again
            log.warning("heartbeat.missed", error=str(error))
            return False
        self.is_heard.set()
        return True

    async def run(self) -> None:
        """Beats until cancelled: every `heartbeat_s`, and soon after each change."""
        while True:
            self._changed.clear()
            await self.publish()
            try:
                async with asyncio.timeout(self._settings.heartbeat_s):
                    await self._changed.wait()
                    await asyncio.sleep(_GATHER_S)
            except TimeoutError:
                continue
