"""Records are acknowledged in their order, each only when its table writes are on the brokers; a key is written once at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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


class FakeTable:
    """Its changelog: what was sent, in order, and when the broker says so."""

    def __init__(self, name: str = "rows", *, is_slow: bool = False) -> None:
        self.name = name
        self.is_slow = is_slow
        self.sent: list[tuple[int, bytes, bytes | None]] = []
        self.pending: list[asyncio.Future[None]] = []

    async def send(self, partition: int, key: bytes, value: bytes | None) -> asyncio.Future[None]:
        self.sent.append((partition, key, value))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.is_slow:
            future.set_result(None)
        self.pending.append(future)
        return future


def note(acknowledger: Acknowledger, table: FakeTable, key: bytes, value: bytes | None, *, is_known: bool) -> None:
    """A change in partition 0."""
    acknowledger.note(table, 0, key, value, is_known=is_known)  # type: ignore[arg-type]


async def settled() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(acknowledger: Acknowledger) -> AsyncIterator[asyncio.Task[None]]:
    """It runs in the background."""
    task = asyncio.create_task(acknowledger.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_records_wait_for_every_write_until_then_and_keep_their_order() -> None:
    """None is acknowledged while one of the writes is under way; then all are, in order."""
    log: list[str] = []
    table = FakeTable(is_slow=True)
    acknowledger = Acknowledger(gather_s=0)
    note(acknowledger, table, b"1", b"a", is_known=False)
    await acknowledger.done(Event("a", log))  # type: ignore[arg-type]
    note(acknowledger, table, b"2", b"b", is_known=False)
    await acknowledger.done(Event("b", log))  # type: ignore[arg-type]
    await acknowledger.done(Event("c", log))  # type: ignore[arg-type]
    async with running(acknowledger):
        await settled()
        assert len(table.pending) == 2
        table.pending[1].set_result(None)
        await settled()
        assert log == []
        table.pending[0].set_result(None)
        await settled()
        assert log == ["a", "b", "c"]


async def test_a_record_that_comes_during_a_write_waits_for_the_next() -> None:
    """Its own change isn't part of the write under way, so its end says nothing about it."""
    log: list[str] = []
    table = FakeTable(is_slow=True)
    acknowledger = Acknowledger(gather_s=0)
    note(acknowledger, table, b"1", b"a", is_known=False)
    await acknowledger.done(Event("a", log))  # type: ignore[arg-type]
    async with running(acknowledger):
        await settled()
        note(acknowledger, table, b"1", b"b", is_known=True)
        await acknowledger.done(Event("b", log))  # type: ignore[arg-type]
        table.pending[0].set_result(None)
        await settled()
        assert (log, table.sent) == (["a"], [(0, b"1", b"a"), (0, b"1", b"b")])
        table.pending[1].set_result(None)
        await settled()
        assert log == ["a", "b"]


async def test_a_key_is_written_once_with_its_last_value_and_in_the_order_of_the_last_changes() -> None:
    """What a changelog keeps after compaction is what it gets."""
    table, other = FakeTable(), FakeTable("others")
    acknowledger = Acknowledger()
    for value in (b"a", b"b"):
        note(acknowledger, table, b"1", value, is_known=value != b"a")
        note(acknowledger, table, b"2", value, is_known=True)
    note(acknowledger, table, b"1", b"c", is_known=True)
    note(acknowledger, other, b"1", b"x", is_known=False)
    await acknowledger.flush()
    assert (table.sent, other.sent) == ([(0, b"2", b"b"), (0, b"1", b"c")], [(0, b"1", b"x")])


async def test_a_row_that_never_left_needs_no_tombstone_and_every_other_does() -> None:
    """Set and deleted in between: the changelog knows nothing of it. What it knows, or may know, is deleted there."""
    table = FakeTable()
    acknowledger = Acknowledger()
    note(acknowledger, table, b"new", b"a", is_known=False)
    note(acknowledger, table, b"new", None, is_known=True)
    note(acknowledger, table, b"old", b"b", is_known=True)
    note(acknowledger, table, b"old", None, is_known=True)
    note(acknowledger, table, b"again", None, is_known=True)
    note(acknowledger, table, b"again", b"c", is_known=False)
    note(acknowledger, table, b"again", None, is_known=True)
    await acknowledger.flush()
    assert table.sent == [(0, b"old", None), (0, b"again", None)]
    table.sent.clear()
    note(acknowledger, table, b"1", b"a", is_known=False)
    await acknowledger.flush()
    note(acknowledger, table, b"1", None, is_known=True)
    await acknowledger.flush()
    assert table.sent == [(0, b"1", b"a"), (0, b"1", None)]


async def test_a_failed_write_ends_it_without_an_acknowledgement() -> None:
    """The service then begins again at the commits, where the record still is."""
    log: list[str] = []
    table = FakeTable(is_slow=True)
    acknowledger = Acknowledger(gather_s=0)
    note(acknowledger, table, b"1", b"a", is_known=False)
    await acknowledger.done(Event("a", log))  # type: ignore[arg-type]
    async with running(acknowledger) as task:
        await settled()
        table.pending[0].set_exception(TimeoutError("no broker"))
        with pytest.raises(TimeoutError):
            await task
    assert log == []


async def test_a_last_flush_that_failed_ends_it_too() -> None:
    """Tables in memory would be ahead of their changelogs, and nobody would write that row again."""
    log: list[str] = []
    table = FakeTable(is_slow=True)
    acknowledger = Acknowledger(gather_s=0)
    note(acknowledger, table, b"1", b"a", is_known=False)
    await acknowledger.done(Event("a", log))  # type: ignore[arg-type]
    flushing = asyncio.create_task(acknowledger.flush_quietly())
    await settled()
    table.pending[0].set_exception(TimeoutError("no broker"))
    await flushing
    with pytest.raises(RuntimeError, match="changelogs"):
        await acknowledger.run()
    assert log == []
