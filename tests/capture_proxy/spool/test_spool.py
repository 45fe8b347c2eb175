"""The spool as a whole: the race of ack and fsync, rotation with carried state, and what a successor makes of a crash."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.memory import MemoryBus
from capture_proxy.spool import Spool, SpoolRefusalError
from capture_proxy.spool.journal import Journal, try_lock
from capture_proxy.spool.recovery import unfinished_business
from schemas.records import (
    Boundary,
    CompletionDelivery,
    CompletionRecord,
    CompletionState,
    Record,
    SessionOpened,
    SessionSealed,
)
from tests.capture_proxy.fakes import HeldBus


@pytest.fixture
async def bus() -> AsyncIterator[HeldBus]:
    """A memory bus whose acks can be withheld."""
    async with HeldBus(partitions=1) as held:
        yield held


def opened(lease: str = "l1", session: str = "s1") -> SessionOpened:
    return SessionOpened(session_id=session, lease_id=lease, writer=1, attempt=1, proxy_id="p", opened_at=1000)


def call(seq: int, lease: str = "l1", session: str = "s1", **changes: Any) -> CompletionRecord:
    return CompletionRecord(
        session_id=session,
        lease_id=lease,
        writer=1,
        call_seq=seq,
        completion_id=f"{lease}-{seq}",
        started_at=2000 + seq,
        **changes,
    )


def done(seq: int, **options: Any) -> CompletionRecord:
    return call(seq, state=CompletionState.FINISHED, finished_at=3000 + seq, **options)


def on_log(bus: MemoryBus) -> list[Any]:
    return [d.decode() for d in bus.records("capture.completions")]


def crash(spool: Spool) -> Path:
    """A copy of the spool as a SIGKILL would leave it: what the kernel has, without a lock."""
    copy = spool.journal.directory.parent / "crashed"
    shutil.copytree(spool.journal.directory, copy)
    return copy


async def revive(directory: Path, bus: MemoryBus) -> Spool:
    """Adopts a crashed spool."""
    lock = try_lock(directory)
    assert lock is not None
    spool = Spool(bus, Journal(directory, lock))
    spool.load()
    spool.finish_business()
    spool.start()
    return spool


async def test_kafka_first(bus: HeldBus, tmp_path: Path) -> None:
    """An ack within the patience releases without any fsync."""
    spool = Spool.create(tmp_path, "one", bus, fsync=lambda _fd: pytest.fail("no fsync was needed"), ack_wait_s=5.0)
    spool.relay.start()
    assert await spool.commit(opened()) == "kafka"
    await spool.relay.stop(1.0)
    await spool.journal.close(is_done=True)


async def test_the_disk_when_kafka_is_late(bus: HeldBus, tmp_path: Path) -> None:
    """Without an ack the fsync releases, and only after the patience."""
    bus.acks.clear()
    spool = Spool.create(tmp_path, "one", bus, ack_wait_s=0.01)
    spool.start()
    assert await spool.commit(opened()) == "fsync"
    assert spool.relay.unacked == 1
    await spool.stop(0.0)


async def test_neither_nor_is_a_timeout(bus: HeldBus, tmp_path: Path) -> None:
    """When neither answers, commit raises after its deadline, and the entry stays queued."""
    bus.acks.clear()
    gate = threading.Event()
    spool = Spool.create(
        tmp_path, "one", bus, fsync=lambda _fd: gate.wait(10.0) and None, ack_wait_s=0.0, commit_timeout_s=0.1
    )
    spool.start()
    entry = spool.append(opened())
    with pytest.raises(TimeoutError):
        await spool.durable(entry)
    assert spool.relay.unacked == 1
    bus.acks.set()
    assert await spool.durable(entry, ack_wait_s=5.0) == "kafka"
    gate.set()
    await spool.stop(1.0)


async def test_a_late_ack_releases_while_the_fsync_hangs(bus: HeldBus, tmp_path: Path) -> None:
    """The race after the patience is open to both."""
    bus.acks.clear()
    gate = threading.Event()
    spool = Spool.create(tmp_path, "one", bus, fsync=lambda _fd: gate.wait(10.0) and None, ack_wait_s=0.0)
    spool.start()
    committing = asyncio.create_task(spool.commit(opened()))
    await asyncio.wait({committing}, timeout=0.05)
    assert not committing.done()
    bus.acks.set()
    assert await asyncio.wait_for(committing, 5.0) == "kafka"
    gate.set()
    await spool.stop(1.0)


async def test_a_crash_is_finished_by_the_successor(bus: HeldBus, tmp_path: Path) -> None:
    """Started without a record → `proxy_crash`; open leases → sealed with the last number; nothing acknowledged is lost."""
    bus.acks.clear()
    spool = Spool.create(tmp_path, "one", bus)
    spool.start()
    spool.append(opened())
    spool.append(opened("l2", "s2"))
    for seq in (1, 2, 3):
        spool.call_started(call(seq))
    spool.append(done(2))
    spool.append(SessionSealed(session_id="s2", lease_id="l2", writer=1, last_seq=0))
    left = crash(spool)
    await spool.stop(0.0)
    bus.acks.set()
    successor = await revive(left, bus)
    assert await successor.stop(5.0)
    assert not left.exists()
    records = {(r.call_seq): r for r in on_log(bus) if isinstance(r, CompletionRecord)}
    assert {seq: str(r.state) for seq, r in records.items()} == {1: "failed", 2: "finished", 3: "failed"}
    assert records[1].error is not None
    assert (records[1].error.kind, records[1].error.boundary) == ("proxy_crash", Boundary.PROVIDER)
    seals = {r.lease_id: r for r in on_log(bus) if isinstance(r, SessionSealed)}
    assert (seals["l1"].last_seq, seals["l1"].reason) == (3, "proxy_crash")
    assert (seals["l2"].last_seq, seals["l2"].reason) == (0, "")


async def test_an_adopter_that_dies_too_changes_nothing(bus: HeldBus, tmp_path: Path) -> None:
    """A second adoption of the same spool says the same facts, under the same ids and with the same content."""
    bus.acks.clear()
    spool = Spool.create(tmp_path, "one", bus)
    spool.start()
    spool.append(opened())
    spool.call_started(call(1))
    left = crash(spool)
    await spool.stop(0.0)
    said: list[list[Record]] = []
    for _ in range(2):
        lock = try_lock(left)
        assert lock is not None
        adopter = Spool(bus, Journal(left, lock))
        adopter.load()
        said.append(unfinished_business(adopter.state))
        os.close(lock)
        adopter.journal._flusher.shutdown()
    assert said[0] == said[1]
    assert [type(r) for r in said[0]] == [CompletionRecord, SessionSealed]


async def test_state_is_carried_over_rotations(bus: HeldBus, tmp_path: Path) -> None:
    """With tiny segments, acknowledged ones go, and a successor still knows the open lease, its numbers and its open call."""
    spool = Spool.create(tmp_path, "one", bus, segment_bytes=200)
    spool.start()
    spool.append(opened())
    spool.call_started(call(1))
    for seq in range(2, 30):
        spool.call_started(call(seq))
        spool.append(done(seq))
    async with asyncio.timeout(5.0):
        while spool.relay.unacked:
            await asyncio.sleep(0.01)
    await spool.tidy()
    assert len(list(spool.journal.directory.glob("*.seg"))) < 5
    left = crash(spool)
    await spool.stop(0.0)
    before = len(on_log(bus))
    successor = await revive(left, bus)
    assert await successor.stop(5.0)
    new = on_log(bus)[before:]
    assert [
        (type(r).__name__, getattr(r, "call_seq", r.last_seq if isinstance(r, SessionSealed) else 0)) for r in new
    ] == [
        ("CompletionRecord", 1),
        ("SessionSealed", 29),
    ]


async def test_what_kafka_has_isnt_sent_again(bus: HeldBus, tmp_path: Path) -> None:
    """Noted acknowledgements survive a crash."""
    spool = Spool.create(tmp_path, "one", bus)
    spool.start()
    await spool.commit(opened(), ack_wait_s=5.0)
    await spool.commit(SessionSealed(session_id="s1", lease_id="l1", writer=1), ack_wait_s=5.0)
    await spool.tidy()
    left = crash(spool)
    assert await spool.stop(1.0)
    successor = await revive(left, bus)
    assert successor.relay.unacked == 0
    assert await successor.stop(1.0)
    assert len(on_log(bus)) == 2


async def test_a_quiet_spool_writes_nothing(bus: HeldBus, tmp_path: Path) -> None:
    """Housekeeping of an idle spool doesn't make it grow."""
    spool = Spool.create(tmp_path, "one", bus)
    spool.start()
    await spool.commit(opened(), ack_wait_s=5.0)
    await spool.tidy()
    size = spool.journal.size_bytes
    for _ in range(5):
        await spool.tidy()
    assert spool.journal.size_bytes == size
    await spool.stop(1.0)


async def test_the_limit_counts_what_kafka_doesnt_have(bus: HeldBus, tmp_path: Path) -> None:
    """Above it calls are refused, with Kafka's own words; below it again they aren't."""
    bus.acks.clear()
    spool = Spool.create(tmp_path, "one", bus, limit_bytes=300)
    spool.start()
    spool.check_room()
    for seq in (1, 2, 3):
        spool.append(done(seq))
    with pytest.raises(SpoolRefusalError, match="limit 300"):
        spool.check_room()
    bus.acks.set()
    async with asyncio.timeout(5.0):
        while spool.relay.unacked:
            await asyncio.sleep(0.01)
    spool.check_room()
    await spool.stop(1.0)


steps = st.lists(st.sampled_from(["start", "finish", "deliver", "tidy", "ack"]), max_size=30)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.integers(100, 3000), st.data())
def test_whatever_happened_before_a_crash_numbers_are_contiguous_after_it(
    tmp_path_factory: pytest.TempPathFactory, what: list[str], segment_bytes: int, data: st.DataObject
) -> None:
    """Any history, any segment size: after adoption every number from 1 to last_seq has exactly one record on the log."""
    root = tmp_path_factory.mktemp("spool")

    async def run() -> None:
        async with HeldBus(partitions=1) as bus:
            bus.acks.clear()
            spool = Spool.create(root, "one", bus, segment_bytes=segment_bytes)
            spool.start()
            spool.append(opened())
            running: list[int] = []
            last = 0
            for step in what:
                if step == "start":
                    last += 1
                    spool.call_started(call(last))
                    running.append(last)
                elif step == "finish" and running:
                    seq = running.pop(data.draw(st.integers(0, len(running) - 1)))
                    spool.append(done(seq))
                    spool.append(
                        CompletionDelivery(session_id="s1", lease_id="l1", writer=1, call_seq=seq, delivered=True)
                    )
                elif step == "tidy":
                    await spool.tidy()
                elif step == "ack":
                    bus.acks.set()
                    for _ in range(5):
                        await asyncio.sleep(0)
                    bus.acks.clear()
            left = crash(spool)
            bus.acks.set()
            await spool.stop(0.0)
            successor = await revive(left, bus)
            assert await successor.stop(5.0)
            ids = {r.event_id: r for r in on_log(bus)}
            seals = [r for r in ids.values() if isinstance(r, SessionSealed)]
            assert [s.last_seq for s in seals] == [last]
            seqs = sorted(r.call_seq for r in ids.values() if isinstance(r, CompletionRecord))
            assert seqs == list(range(1, last + 1))
            assert all(
                r.state in (CompletionState.FINISHED, CompletionState.FAILED)
                for r in ids.values()
                if isinstance(r, CompletionRecord)
            )

    asyncio.run(run())
