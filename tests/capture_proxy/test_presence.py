"""How a proxy tells that it is there."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from capture_proxy.presence import Pulse
from schemas.records import Heartbeat


class SlowBus:
    """Takes a beat only when the test lets it."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Heartbeat] = asyncio.Queue()
        self.go_on = asyncio.Semaphore(0)

    async def publish(self, beat: Heartbeat) -> None:
        self.arrived.put_nowait(beat)
        await self.go_on.acquire()


async def test_a_change_while_a_beat_is_on_its_way_is_told_at_once() -> None:
    """That beat was made before the change (a stop, for example): another one follows without waiting for its turn."""
    bus, is_stopping = SlowBus(), False
    pulse = Pulse(
        cast("Any", bus), lambda seq: Heartbeat(node_id="p", role="proxy", seq=seq, is_draining=is_stopping), every_s=60
    )
    pulse.start()
    try:
        async with asyncio.timeout(5):
            assert not (await bus.arrived.get()).is_draining
            is_stopping = True
            pulse.beat_now()
            bus.go_on.release()
            assert (await bus.arrived.get()).is_draining
    finally:
        await pulse.stop()
