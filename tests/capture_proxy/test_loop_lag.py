"""How late the event loop is."""

from __future__ import annotations

import asyncio
import time

from capture_proxy.loop_lag import LoopLag


async def test_b140_a_blocked_loop_is_seen() -> None:
    """A step that holds the loop shows in the worst lag; alone it isn't a sustained one."""
    lag = LoopLag(every_s=0.02)
    lag.start()
    async with asyncio.timeout(10.0):
        while len(lag._lags) < 3:
            await asyncio.sleep(0.01)
        time.sleep(0.3)
        seen = len(lag._lags)
        while len(lag._lags) < seen + 4:
            await asyncio.sleep(0.01)
    await lag.stop()
    assert lag.describe()["worst_ms"] > 200
    assert lag.sustained_s < 0.2


def test_b140_only_what_lasts_is_an_overload() -> None:
    """The least of the last three probes; nothing before there are three."""
    lag = LoopLag()
    lag._lags.extend([5.0, 5.0])
    assert lag.sustained_s == 0.0
    lag._lags.append(1.5)
    assert lag.sustained_s == 1.5
    lag._lags.append(0.1)
    assert lag.sustained_s == 0.1
