"""Reading along: each record once, poison set aside, an unknown schema waited for, an outage outlived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from bus import Delivery, Reader
from bus.memory import MemoryBus
from schemas.records import Control, Record

UNKNOWN = b"\x00\x00\x0f\x42\x3fnewer"


class Seen:
    """Remembers what a reader handed over, and wakes those who wait for it."""

    def __init__(self) -> None:
        self.records: list[Record | None] = []
        self.changed = asyncio.Event()

    async def take(self, delivery: Delivery, record: Record | None) -> None:
        """Raise for a control that asks for it, else keep the record."""
        if isinstance(record, Control) and record.reason == "raise":
            raise ValueError(f"offset {delivery.offset} can't be taken")
        self.records.append(record)
        self.changed.set()

    async def until(self, count: int) -> None:
        """Wait until so many records were taken."""
        async with asyncio.timeout(10):
            while len(self.records) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def reading(reader: Reader) -> AsyncIterator[None]:
    """A reader that runs beside the test."""
    task = asyncio.create_task(reader.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def control(name: str, reason: str = "") -> Control:
    """A control with an id, all for one target, so that they stay in one partition."""
    return Control(control_id=name, target="t", reason=reason)


def reader_of(bus: MemoryBus, seen: Seen, **options: object) -> Reader:
    """A reader of the controls from their beginning."""
    return Reader(bus, "proxy", "controls", seen.take, topics=["rollout.control"], start="earliest", **options)  # type: ignore[arg-type]


async def test_bad_records_are_set_aside_and_the_rest_goes_on(memory_bus: MemoryBus) -> None:
    """Poison, and a record that the view can't stand, land in the component's dead letters; a tombstone is None."""
    seen = Seen()
    for record in (control("a"), control("b", "raise")):
        await memory_bus.publish(record)
    await memory_bus.publish_raw("rollout.control", b"t", b"no avro", [])
    await memory_bus.publish_raw("rollout.control", b"t", None, [])
    await memory_bus.publish(control("c"))
    async with reading(reader_of(memory_bus, seen)):
        await seen.until(3)
    assert [getattr(r, "control_id", None) for r in seen.records] == ["a", None, "c"]
    dead = memory_bus.records("rollout.control.proxy.dead")
    assert [d.headers["dead_reason"] for d in dead] == [b"handler_error", b"malformed"]
    assert dead[1].value == b"no avro"


async def test_an_unknown_schema_stops_the_reader_and_is_named(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind it is taken, nothing is dead-lettered, and `problems` names the id and the place."""
    monkeypatch.setattr("bus.reader.PAUSE_S", 0.01)
    seen = Seen()
    await memory_bus.publish(control("a"))
    await memory_bus.publish_raw("rollout.control", b"t", UNKNOWN, [])
    await memory_bus.publish(control("b"))
    reader = reader_of(memory_bus, seen)
    async with reading(reader), asyncio.timeout(10):
        while not reader.problems:
            await asyncio.sleep(0.01)
        assert "999999" in reader.problems["controls"]
        assert "rollout.control" in reader.problems["controls"]
    assert [getattr(r, "control_id", None) for r in seen.records] == ["a"]
    assert memory_bus.records("rollout.control.proxy.dead") == []


async def test_after_an_outage_nothing_is_taken_twice(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is read again from its start, but what was taken isn't taken again; the owner hears of the outage."""
    monkeypatch.setattr("bus.reader.PAUSE_S", 0.01)
    seen, interruptions = Seen(), []
    await memory_bus.publish(control("a"))
    original, broken = memory_bus.tail, False

    async def tail(*args: object, **options: object) -> AsyncIterator[Delivery]:
        nonlocal broken
        async for delivery in original(*args, **options):  # type: ignore[arg-type]
            yield delivery
            if not broken:
                broken = True
                raise ConnectionError("the broker is gone")

    monkeypatch.setattr(memory_bus, "tail", tail)
    async with reading(reader_of(memory_bus, seen, on_interrupted=lambda: interruptions.append(1))):
        await seen.until(1)
        await memory_bus.publish(control("b"))
        await seen.until(2)
    assert [getattr(r, "control_id", None) for r in seen.records] == ["a", "b"]
    assert interruptions == [1]


async def test_it_says_once_when_the_log_as_it_was_has_been_taken(memory_bus: MemoryBus) -> None:
    """Not before the last record that stood there, and then it reads on, each record once."""
    seen, told = Seen(), []
    for name in ("a", "b"):
        await memory_bus.publish(control(name))
    async with reading(reader_of(memory_bus, seen, on_caught_up=lambda: told.append(len(seen.records)))):
        await seen.until(2)
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0.01)
        await memory_bus.publish(control("c"))
        await seen.until(3)
    assert told == [2]
    assert [r.control_id for r in seen.records if isinstance(r, Control)] == ["a", "b", "c"]
