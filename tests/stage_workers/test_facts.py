"""The line of facts."""

from __future__ import annotations

import asyncio

from schemas import MalformedRecordError
from schemas.records import Record, Reward, SessionEvent, SessionEventType
from stage_workers.facts import FactQueue


class Bus:
    """A bus that fails as told and notes what it took."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.taken: list[Record] = []

    async def publish(self, record: Record, *, deadline_s: float | None = None) -> object:
        assert deadline_s is not None
        if record.key == "poison":
            raise MalformedRecordError("a record that doesn't fit")
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no broker")
        self.taken.append(record)
        return None


def event(session: str, kind: SessionEventType = SessionEventType.READY) -> SessionEvent:
    return SessionEvent(session_id=session, type=kind)


async def test_order_is_kept_through_an_outage() -> None:
    """Facts that couldn't be sent are sent later, in the order in which they were put, across topics."""
    bus = Bus(failures=3)
    queue = FactQueue(bus, pause_s=0.01)
    facts: list[Record] = [event("a"), Reward(session_id="a", value=1.0), event("a", SessionEventType.GRADED)]
    queue.put(facts[0])
    queue.put(*facts[1:])
    sender = asyncio.create_task(queue.run())
    assert await queue.flush(20)
    assert bus.taken == facts
    assert (queue.backlog, queue.is_connected) == (0, True)
    sender.cancel()


async def test_flush_gives_up() -> None:
    """A flush that can't be done in time says so, and the facts stay in line."""
    queue = FactQueue(Bus(failures=1_000_000), pause_s=0.01)
    queue.put(event("a"))
    sender = asyncio.create_task(queue.run())
    assert not await queue.flush(0.1)
    assert (queue.backlog, queue.is_connected) == (1, False)
    sender.cancel()


async def test_unencodable_fact_does_not_block() -> None:
    """A fact that no bus will ever take is given up; those behind it are sent."""
    bus = Bus()
    queue = FactQueue(bus)
    queue.put(event("poison"), event("b"))
    sender = asyncio.create_task(queue.run())
    assert await queue.flush(20)
    assert bus.taken == [event("b")]
    sender.cancel()


async def test_empty_flush() -> None:
    """There is nothing to wait for when nothing was put."""
    assert await FactQueue(Bus()).flush(0.1)
