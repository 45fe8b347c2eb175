"""Records are acknowledged in their order, each only when its table writes are on the brokers."""

from __future__ import annotations

import asyncio

import pytest

from stream_processors.acknowledge import Acknowledger


class Event:
    """Notes its acknowledgement."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def ack(self) -> bool:
        self.log.append(self.name)
        return True


async def settled() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_record_waits_for_its_own_writes_and_for_those_before() -> None:
    """The second record's writes are there first: it is acknowledged second all the same."""
    log: list[str] = []
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    acknowledger = Acknowledger()
    running = asyncio.create_task(acknowledger.run())
    acknowledger.note(first)
    await acknowledger.done(Event("a", log))  # type: ignore[arg-type]
    acknowledger.note(second)
    await acknowledger.done(Event("b", log))  # type: ignore[arg-type]
    await acknowledger.done(Event("c", log))  # type: ignore[arg-type]
    second.set_result(None)
    await settled()
    assert log == []
    first.set_result(None)
    await settled()
    assert log == ["a", "b", "c"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_failed_write_ends_it_without_an_acknowledgement() -> None:
    """The service then begins again at the commits, where the record still is."""
    log: list[str] = []
    lost = asyncio.get_running_loop().create_future()
    acknowledger = Acknowledger()
    acknowledger.note(lost)
    await acknowledger.done(Event("a", log))  # type: ignore[arg-type]
    lost.set_exception(TimeoutError("no broker"))
    with pytest.raises(TimeoutError):
        await acknowledger.run()
    assert log == []
