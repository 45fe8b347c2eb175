"""The life of the two callback lanes inside an API process."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import structlog

from bus import Bus, Lane
from compose.api.callbacks.bodies import Bodies
from compose.api.callbacks.courier import Courier
from compose.api.callbacks.sender import Sender
from compose.api.reading import LogReading
from compose.api.settings import ApiSettings
from compose.api.views import Views

_log = structlog.get_logger(__name__)

RESULTS_GROUP: Final = "api-callbacks"
DUE_GROUP: Final = "api-callbacks-due"
COMPONENT: Final = "api"


class CallbackService:
    """Makes callbacks while it runs; `off` when the operator allows no host. API processes share the work by partitions."""

    def __init__(self, bus: Bus, views: Views, reading: LogReading, settings: ApiSettings) -> None:
        self._bus = bus
        self._views = views
        self._reading = reading
        self._settings = settings
        self._lanes: list[Lane] = []
        self._running: list[asyncio.Task[None]] = []
        self._courier: Courier | None = None
        self._sender: Sender | None = None

    def start(self) -> None:
        """Begin, if callbacks are wanted here."""
        if self._settings.callback_key is None or not self._settings.callback_hosts:
            return
        self._sender = Sender(self._settings)
        bodies = Bodies(self._views, self._reading, inline_bytes=self._settings.inline_bytes)
        courier = self._courier = Courier(self._bus, self._views, bodies, self._sender, self._settings)
        self._lanes = [
            self._bus.lane(RESULTS_GROUP, ["trajectory.scored"], courier.on_scored, component=COMPONENT, decode=False),
            self._bus.lane(DUE_GROUP, ["rollout.callbacks"], courier.on_callback, component=COMPONENT),
        ]
        self._running = [asyncio.create_task(lane.run(), name=f"lane-{lane.name}") for lane in self._lanes]
        for task in self._running:
            task.add_done_callback(_tell)

    async def stop(self) -> None:
        """Finish what is in hand, commit and leave."""
        if self._courier is not None:
            self._courier.stopping.set()
        for lane in self._lanes:
            lane.stop()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._sender is not None:
            await self._sender.close()

    @property
    def state(self) -> Literal["off", "ok", "retrying"]:
        """How the lanes do; a receiver that is down is a matter of its callbacks, not of the lanes."""
        if not self._lanes:
            return "off"
        return "ok" if all(lane.health().is_healthy for lane in self._lanes) else "retrying"


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("callbacks.ended", lane=task.get_name(), error=repr(error))
