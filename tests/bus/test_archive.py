"""The archive: everything once, by file names; the log's `tail` over files; holes, other logs and second writers."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bus import Bus, BusRefusedError, Delivery
from bus.archive import ArchiveError, ArchiveLog, archive
from bus.archive import writer as archive_writer
from bus.kafka import KafkaBus
from bus.memory import MemoryBus
from schemas.records import CompletionDelivery, Reward

TOPICS = ("capture.completions", "reward.assigned")


def fact(n: int) -> CompletionDelivery:
    return CompletionDelivery(session_id=f"s{n % 5}", lease_id="lease", call_seq=n + 1)


async def everything(log: Bus | ArchiveLog, **options: object) -> list[Delivery]:
    found = [d async for d in log.tail(TOPICS, until_end=True, **options)]  # type: ignore[arg-type]
    return sorted(found, key=lambda d: (d.topic, d.partition, d.offset))


class Behaviours:
    """What holds on any bus."""

    async def test_what_is_read_back_is_the_log(self, bus: Bus, tmp_path: Path) -> None:
        """Topics, partitions, offsets, times, keys, headers and values."""
        for n in range(20):
            await bus.publish(fact(n))
        await bus.publish(Reward(session_id="s1", value=0.5))
        report = await archive(bus, tmp_path / "a", topics=TOPICS)
        assert report.records == {"capture.completions": 20, "reward.assigned": 1}
        assert await everything(ArchiveLog(tmp_path / "a")) == await everything(bus)

    async def test_a_second_run_goes_on_where_the_files_end(self, bus: Bus, tmp_path: Path) -> None:
        """Every record once, whatever runs were made; a run with nothing new writes nothing."""
        for n in range(6):
            await bus.publish(fact(n))
            await archive(bus, tmp_path, topics=TOPICS)
        assert (await archive(bus, tmp_path, topics=TOPICS)).files == 0
        assert await everything(ArchiveLog(tmp_path)) == await everything(bus)

    async def test_it_follows_until_it_is_stopped(self, bus: Bus, tmp_path: Path) -> None:
        """What came before the stop is on the disk after it."""
        stop, written = asyncio.Event(), asyncio.Event()
        following = asyncio.create_task(
            archive(bus, tmp_path, topics=TOPICS, stop=stop, flush_s=0.05, on_change=lambda _: written.set())
        )
        await bus.publish(fact(0))
        async with asyncio.timeout(30):
            await written.wait()
            await bus.publish(fact(1))
            while not (tmp_path / "capture.completions").exists():
                await asyncio.sleep(0.01)
            stop.set()
            await following
        (await archive(bus, tmp_path, topics=TOPICS)).records.get("capture.completions", 0)
        assert len(await everything(ArchiveLog(tmp_path))) == 2


class TestInMemory(Behaviours):
    """On the in-memory bus."""

    @pytest.fixture
    def bus(self, memory_bus: MemoryBus) -> Bus:
        return memory_bus

    async def test_reading_begins_where_it_is_told_to(self, bus: MemoryBus, tmp_path: Path) -> None:
        """At offsets, at a time, at partitions; `latest` is nothing."""
        for n in range(9):
            await bus.publish(fact(n))
        await archive(bus, tmp_path, topics=TOPICS, flush_bytes=1)
        log = ArchiveLog(tmp_path)
        whole = await everything(bus)
        middle = whole[len(whole) // 2]
        start = {(middle.topic, middle.partition): middle.offset}
        assert await everything(log, start=start) == await everything(bus, start=start)
        assert await everything(log, partitions=[middle.partition]) == [
            d for d in whole if d.partition == middle.partition
        ]
        assert await everything(log, start=0) == whole
        assert await everything(log, start=2**41) == await everything(log, start="latest") == []

    async def test_claim_checks_are_resolved(self, tmp_path: Path) -> None:
        """An archive stands for itself: a large record's bytes are in it, not in the blob store."""
        async with MemoryBus(partitions=1) as bus:
            large = Reward(session_id="s", details={"log": "x" * 400_000})
            await bus.publish(large)
            await archive(bus, tmp_path, topics=TOPICS)
        (delivery,) = await everything(ArchiveLog(tmp_path))
        assert delivery.decode() == large

    async def test_tombstones_stay_tombstones(self, bus: MemoryBus, tmp_path: Path) -> None:
        """A null value is no empty record."""
        await bus.publish_raw("reward.assigned", b"k", None)
        await archive(bus, tmp_path, topics=TOPICS)
        (delivery,) = await everything(ArchiveLog(tmp_path))
        assert (delivery.is_tombstone, delivery.key) == (True, b"k")

    async def test_a_file_appears_whole_or_not_at_all(
        self, bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A crash while writing leaves no file under a final name, and the next run has everything."""
        await bus.publish(fact(0))
        whole = pq.write_table

        def torn(table: object, path: Path, **options: object) -> None:
            path.write_bytes(b"half")
            raise OSError("disk full")

        monkeypatch.setattr(pq, "write_table", torn)
        with pytest.raises(OSError, match="disk full"):
            await archive(bus, tmp_path, topics=TOPICS)
        assert not list(tmp_path.glob("*/*/*.parquet"))
        monkeypatch.setattr(pq, "write_table", whole)
        await archive(bus, tmp_path, topics=TOPICS)
        assert len(await everything(ArchiveLog(tmp_path))) == 1

    async def test_a_stop_waits_for_the_file_that_is_being_written(
        self, bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else its thread would finish it beside the next writer, which reads the same offsets again: an overlap for ever."""
        begun, go, stop = threading.Event(), threading.Event(), asyncio.Event()
        write = archive_writer._write

        def slow(rows: list[Delivery], path: Path) -> None:
            begun.set()
            assert go.wait(20)
            write(rows, path)

        monkeypatch.setattr(archive_writer, "_write", slow)
        await bus.publish(fact(0))
        following = asyncio.create_task(archive(bus, tmp_path, topics=TOPICS, stop=stop, flush_bytes=1))
        assert await asyncio.to_thread(begun.wait, 20)
        stop.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not following.done()
        go.set()
        await following
        await bus.publish(fact(1))
        await archive(bus, tmp_path, topics=TOPICS)
        assert await everything(ArchiveLog(tmp_path)) == await everything(bus)

    async def test_a_torn_file_and_a_place_that_is_no_directory_are_errors_by_name(
        self, bus: MemoryBus, tmp_path: Path
    ) -> None:
        """Which file, and what to do: no traceback of a library."""
        await bus.publish(fact(0))
        await archive(bus, tmp_path, topics=TOPICS)
        (path,) = tmp_path.glob("*/*/*.parquet")
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ArchiveError, match=rf"{path.name} can't be read.*put back a copy"):
            await everything(ArchiveLog(tmp_path))
        with pytest.raises(ArchiveError, match="no archive can be made"):
            await archive(bus, path, topics=TOPICS)

    async def test_what_retention_took_is_counted_and_named(
        self, bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The hole shows between two files' names, no file covers it, and the report counts it."""
        for _ in range(3):
            await bus.publish(fact(0))
        await archive(bus, tmp_path, topics=TOPICS)
        for _ in range(4):
            await bus.publish(fact(0))
        (partition,) = {d.partition for d in await everything(bus)}
        log = bus._logs["capture.completions"][partition]
        tail = bus.tail

        def tail_after_retention(topics, **options):  # type: ignore[no-untyped-def]
            if options["start"] != "earliest":
                raise BusRefusedError("retention has taken [3, 5)")
            return tail(topics, **options)

        monkeypatch.setattr(bus, "tail", tail_after_retention)
        del log[:5]
        monkeypatch.setattr(bus, "end_offsets", lambda topic: _ends(7))
        report = await archive(bus, tmp_path, topics=TOPICS)
        names = sorted(p.name for p in tmp_path.glob("capture.completions/*/*.parquet"))
        assert names == [f"{0:020d}-{2:020d}.parquet", f"{5:020d}-{6:020d}.parquet"]
        assert report.lost == {"capture.completions": 2}

    async def test_the_archive_of_another_log_is_refused(self, bus: MemoryBus, tmp_path: Path) -> None:
        """A log made anew begins at offset 0 again: its records aren't the ones that the archive waits for."""
        await bus.publish(fact(0))
        await archive(bus, tmp_path, topics=TOPICS)
        async with MemoryBus(partitions=3) as fresh:
            with pytest.raises(ArchiveError, match="another log"):
                await archive(fresh, tmp_path, topics=TOPICS)

    async def test_one_archive_has_one_writer(self, bus: MemoryBus, tmp_path: Path) -> None:
        """A second one is refused, by whatever process."""
        with archive_writer._only_writer(tmp_path), pytest.raises(ArchiveError, match="another process"):
            await archive(bus, tmp_path, topics=TOPICS)

    async def test_no_archive_is_an_error_that_says_what_to_type(self, tmp_path: Path) -> None:
        """Reading what isn't there isn't an empty log."""
        with pytest.raises(ArchiveError, match="polynya archive"):
            ArchiveLog(tmp_path / "nowhere")

    async def test_overlapping_files_are_refused(self, bus: MemoryBus, tmp_path: Path) -> None:
        """Copied by hand from another archive: nobody guesses which one is right."""
        await bus.publish(fact(0))
        await archive(bus, tmp_path, topics=TOPICS)
        (path,) = tmp_path.glob("*/*/*.parquet")
        path.with_name(f"{0:020d}-{9:020d}.parquet").write_bytes(path.read_bytes())
        with pytest.raises(ArchiveError, match="overlap"):
            await everything(ArchiveLog(tmp_path))


async def _ends(n: int) -> dict[int, int]:
    return dict.fromkeys(range(3), n)


def test_a_delivery_without_record_compares_by_its_bytes() -> None:
    """What the comparisons above rest on: a decoded delivery equals an undecoded one."""
    one = Delivery("t", 0, 0, 0, None, b"x")
    assert replace(one, record=fact(0)) == one


@pytest.mark.broker
class TestOnKafka(Behaviours):
    """On a real broker."""

    @pytest.fixture
    def bus(self, kafka_bus: KafkaBus) -> Bus:
        return kafka_bus
