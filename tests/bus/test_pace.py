"""Two takings of records are apart; whoever has seen nothing for a while doesn't wait."""

from __future__ import annotations

import asyncio

from bus.pace import Pace


async def test_only_a_taking_of_records_makes_the_next_one_wait() -> None:
    """Three empty polls cost no time, one with records does, once."""
    loop = asyncio.get_running_loop()
    pace = Pace(0.05)
    for _ in range(3):
        began = loop.time()
        await pace.wait()
        assert loop.time() - began < 0.05
        pace.took(False)
    began = loop.time()
    pace.took(True)
    await pace.wait()
    assert loop.time() - began >= 0.045
    pace.took(False)
    began = loop.time()
    await pace.wait()
    assert loop.time() - began < 0.04
