"""Data sets: the same bytes for the same log, whole or not at all, added to only where they belong, every session accounted for."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bus import Bus
from bus.archive import ArchiveLog, archive
from bus.errors import BusRefusedError
from bus.memory import MemoryBus
from schemas import codec
from schemas.records import ScoredTrajectory, Status
from tests.trainer_sink.export.talks import BASH, calls, run, says, talk, traced
from trainer_sink.export.arrow import ExportDependencyError
from trainer_sink.export.dataset import Layout, Split, export_dataset
from trainer_sink.export.manifest import Manifest, ManifestError, read_manifest
from trainer_sink.export.place import ExportPlaceError
from trainer_sink.export.sft import SftRows
from trainer_sink.export.shape import Shape
from trainer_sink.export.span import ExportSourceError
from trainer_sink.export.traces import TraceRows

TOPIC = "trajectory.scored"


async def publish(bus: Bus, *records: ScoredTrajectory) -> None:
    for record in records:
        await bus.publish(record)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


class Behaviours:
    """What holds on any bus."""

    async def test_accepted_conversations_in_one_file(self, bus: Bus, tmp_path: Path) -> None:
        """With their tools and whose they are; the manifest says what was read and what isn't there."""
        await publish(
            bus,
            run("a"),
            run("b", reward=0.0),
            run("c", status=Status.FAILED, traces=[], reward=None),
            run("d", 0, *talk(), spec={"metadata": {"repo": "django"}, "harness_version": "1.2"}),
        )
        target = tmp_path / "deep" / "sft.jsonl"
        manifest = await export_dataset(bus, target, SftRows(), Layout())
        first, second = lines(target)
        assert [first["task_id"], second["task_id"]] == ["a", "d"]
        assert second["messages"] == talk()
        assert second["tools"][0]["function"]["name"] == "read"
        assert (second["metadata"], second["reward"], second["tokens"], second["turns"]) == (
            '{"repo":"django"}',
            1.0,
            6,
            2,
        )
        counts = manifest.runs[0].counts
        assert (counts.records, counts.sessions, counts.exported) == (4, 4, 2)
        assert counts.refused == {"reward": 1, "status_failed": 1}
        assert counts.rows == {"train": 2}
        assert manifest.runs[0].makers.harnesses == {"shell": 1, "shell 1.2": 1}
        assert read_manifest(tmp_path / "deep" / "sft.jsonl.manifest.json") == manifest
        assert sorted(p.name for p in target.parent.iterdir()) == ["sft.jsonl", "sft.jsonl.manifest.json"]

    async def test_a_later_run_adds_what_came_since(self, bus: Bus, tmp_path: Path) -> None:
        """Each session once, though the log was read twice; a revision of an exported one is only counted."""
        await publish(bus, run("a"), run("b"), run("c"))
        options: Any = {"maker": SftRows(), "layout": Layout(split=Split(validation=0.5))}
        await export_dataset(bus, tmp_path / "d", **options)
        await publish(bus, run("a", revision=2), *(run(f"t{n}") for n in range(6)))
        manifest = await export_dataset(bus, tmp_path / "d", **options, existing="append")
        assert len(manifest.runs) == 2
        assert manifest.runs[1].counts.refused == {"exported_before": 1}
        assert manifest.runs[1].span.begin == manifest.runs[0].span.end
        rows = [row for path in (tmp_path / "d" / "data").iterdir() for row in lines(path)]
        assert sorted(row["task_id"] for row in rows) == ["a", "b", "c", *(f"t{n}" for n in range(6))]
        assert set(manifest.files) == {str(p.relative_to(tmp_path / "d")) for p in (tmp_path / "d" / "data").iterdir()}


@pytest.mark.broker
class TestOnKafka(Behaviours):
    """On the real Kafka."""

    @pytest.fixture
    def bus(self, kafka_bus: Bus) -> Bus:
        return kafka_bus


class TestInMemory(Behaviours):
    """On the in-memory bus."""


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
async def test_the_same_records_give_the_same_bytes(tmp_path: Path, format_: Any) -> None:
    """Whatever order they arrived in, twice, from the log or from an archive of it; shards, card and manifest alike."""
    records = [run(f"t{n}", i, group_size=2) for n in range(8) for i in range(2)]
    layout = Layout(format=format_, split=Split(validation=0.3), shard_bytes=2_000, licence="mit")
    async with MemoryBus(partitions=2) as bus:
        await publish(bus, *records)
        for name in ("one", "two"):
            await export_dataset(bus, tmp_path / name, SftRows(), layout)
        await archive(bus, tmp_path / "archive")
    await export_dataset(ArchiveLog(tmp_path / "archive"), tmp_path / "three", SftRows(), layout)
    one = files(tmp_path / "one")
    assert one == files(tmp_path / "two") == files(tmp_path / "three")
    assert sum(name.startswith("data/train-") for name in one) > 1
    assert {name[-len(format_) :] for name in one if name.startswith("data/")} == {format_}
    async with MemoryBus(partitions=1) as bus:
        await publish(bus, *records[::-1])
        await export_dataset(bus, tmp_path / "four", SftRows(), layout)
    four = files(tmp_path / "four")
    assert {k: v for k, v in four.items() if "manifest" not in k} == {
        k: v for k, v in one.items() if "manifest" not in k
    }


async def test_no_task_is_in_both_splits(bus: MemoryBus, tmp_path: Path) -> None:
    """And which one it is in depends on nothing but its id and the seed."""
    await publish(bus, *(run(f"t{n}", i, group_size=3) for n in range(40) for i in range(3)))
    manifest = await export_dataset(bus, tmp_path / "a.jsonl", SftRows(), Layout(split=Split(validation=0.25)))
    train, validation = ({r["task_id"] for r in lines(tmp_path / n)} for n in ("a.jsonl", "a.validation.jsonl"))
    assert not train & validation
    assert len(train | validation) == 40
    assert 4 <= len(validation) <= 16
    assert {t for t in train | validation if Split(validation=0.25).of(t) == "validation"} == validation
    assert {t for t in train | validation if Split(validation=0.25, seed=1).of(t) == "validation"} != validation
    assert {n: f["rows"] for n, f in manifest.files.items()} == {
        "a.jsonl": len(train) * 3,
        "a.validation.jsonl": len(validation) * 3,
    }


async def test_the_same_conversation_of_two_sessions_stands_there_once(bus: MemoryBus, tmp_path: Path) -> None:
    """Also across runs; the second session is refused by that name."""
    await publish(bus, run("a", 0, *talk(), group_size=2), run("a", 1, *talk(), group_size=2))
    manifest = await export_dataset(bus, tmp_path / "d", SftRows(), Layout())
    assert manifest.runs[0].counts.refused == {"duplicate": 1}
    await publish(bus, run("b", 0, *talk()))
    manifest = await export_dataset(bus, tmp_path / "d", SftRows(), Layout(), existing="append")
    assert manifest.runs[1].counts.refused == {"duplicate": 1}
    assert manifest.runs[1].counts.traces == 1


async def test_counts_add_up_whatever_is_on_the_log(bus: MemoryBus, tmp_path: Path) -> None:
    """Poison, revisions, repeats, records without a spec, sessions that failed, traces that can't be used."""
    new = run("a", revision=2)
    await publish(
        bus,
        run("a"),
        new,
        new,
        run("b", traces=[traced(talk()), traced([says("hm")], index=1, branch="aux"), traced([{}], index=2)]),
        run("c", traces=[traced([{}])]),
        run("d", status=Status.TIMEOUT, reward=None),
    )
    import dataclasses

    await bus.publish(dataclasses.replace(run("e"), spec=None))
    await bus.publish_raw(TOPIC, b"x", b"no avro")
    foreign = codec.encode(run("f"))
    await bus.publish_raw(
        TOPIC, foreign.key, foreign.value.replace(b'[{"role"', b'[{{role"')
    )  # messages that are no JSON
    counts = (await export_dataset(bus, tmp_path / "d", SftRows(), Layout())).runs[0].counts
    assert counts.set_aside == {"revised": 1, "duplicates": 1, "spec_missing": 1, "unreadable": 2}
    assert counts.refused == {"malformed_message": 1, "status_timeout": 1}
    assert counts.left_out == {"branch_aux": 1, "malformed_message": 2}
    assert (counts.records, counts.sessions, counts.exported, counts.traces, counts.examples) == (9, 4, 2, 5, 2)


async def test_rows_with_new_keys_stand_in_front(bus: MemoryBus, tmp_path: Path) -> None:
    """So that the types that a reader infers from the beginning hold to the end; the others keep their order."""
    plain = [run(f"a{n}", 0, {"role": "user", "content": "?"}, says(str(n))) for n in range(3)]
    await publish(bus, *plain, run("b"), run("c", traces=[traced(talk("x"), tools=[BASH])]))
    await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout())
    assert [r["task_id"] for r in lines(tmp_path / "f.jsonl")] == ["a0", "b", "c", "a1", "a2"]


async def test_bare_rows(bus: MemoryBus, tmp_path: Path) -> None:
    """For APIs that refuse other keys; nothing can be added to them."""
    await publish(bus, run("a"))
    await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout(bare=True))
    assert [set(row) for row in lines(tmp_path / "f.jsonl")] == [{"messages", "tools"}]
    with pytest.raises(ManifestError, match="bare"):
        await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout(bare=True), existing="append")


async def test_an_export_of_nothing(bus: MemoryBus, tmp_path: Path) -> None:
    """Has an empty file and a manifest that says so."""
    await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout())
    assert (tmp_path / "f.jsonl").read_bytes() == b""
    manifest = await export_dataset(bus, tmp_path / "d", SftRows(), Layout(format="parquet"))
    assert pq.read_table(tmp_path / "d" / "data" / "train-00000-of-00001.parquet").num_rows == 0
    assert manifest.runs[0].counts.sessions == 0


async def test_traces_have_tokens_and_failed_sessions_are_named(bus: MemoryBus, tmp_path: Path) -> None:
    """The columns of `export parquet`; whatever the reward."""
    await publish(bus, run("a", reward=0.0), run("b", status=Status.FAILED, reward=None, traces=[]))
    spliced = run("c", traces=[traced(talk(), is_off_context=True)])
    await publish(bus, spliced)
    manifest = await export_dataset(bus, tmp_path / "d", TraceRows(), Layout(format="parquet"))
    (row,) = pq.read_table(tmp_path / "d" / "data").to_pylist()
    assert (row["response_ids"], row["loss_mask"], row["reward"]) == ([3] * 4, [1] * 4, 0.0)
    assert row["ended_at"].timestamp() == 1_700_000_000
    assert manifest.runs[0].counts.refused == {"no_traces": 1, "off_context": 1}


async def test_a_span_of_offsets(bus: MemoryBus, tmp_path: Path) -> None:
    """The manifest's own offsets give the same rows again, though the log has grown."""
    await publish(bus, *(run(f"t{n}") for n in range(6)))
    first = await export_dataset(bus, tmp_path / "a.jsonl", SftRows(), Layout())
    await publish(bus, *(run(f"u{n}") for n in range(6)))
    span = first.runs[0].span
    start = {(TOPIC, n): offset for n, offset in span.begin.items()}
    again = await export_dataset(bus, tmp_path / "b.jsonl", SftRows(), Layout(), start=start, until=span.end)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert again.runs == first.runs
    with pytest.raises(ExportSourceError, match="before 99"):
        await export_dataset(bus, tmp_path / "c.jsonl", SftRows(), Layout(), until={0: 99})
    with pytest.raises(ExportSourceError, match="can't begin at 99"):
        await export_dataset(bus, tmp_path / "c.jsonl", SftRows(), Layout(), start={(TOPIC, 1): 99})


class TestPlaces:
    """What stands at the place of an export."""

    async def test_an_export_that_is_there_stays_unless_told(self, bus: MemoryBus, tmp_path: Path) -> None:
        """`replace` makes it anew, files that it no longer has go."""
        await publish(bus, *(run(f"t{n}") for n in range(8)))
        for target in (tmp_path / "d", tmp_path / "f.jsonl"):
            await export_dataset(bus, target, SftRows(), Layout(split=Split(validation=0.5)))
            with pytest.raises(ExportPlaceError, match="--append"):
                await export_dataset(bus, target, SftRows(), Layout())
            await export_dataset(bus, target, SftRows(), Layout(), existing="replace")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "f.jsonl", "f.jsonl.manifest.json"]
        assert len(lines(tmp_path / "f.jsonl")) == 8
        assert [p.name for p in (tmp_path / "d" / "data").iterdir()] == ["train-00000-of-00001.jsonl"]

    async def test_an_export_whose_tasks_are_all_for_validation_stays_too(self, bus: MemoryBus, tmp_path: Path) -> None:
        """There is no file of the name that was given, only its manifest and the other split."""
        target, layout = tmp_path / "out.jsonl", Layout(split=Split(validation=1.0))
        await publish(bus, run("a"))
        await export_dataset(bus, target, SftRows(), layout)
        assert not target.exists()
        with pytest.raises(ExportPlaceError, match="--append"):
            await export_dataset(bus, target, SftRows(), layout)
        await publish(bus, run("b"))
        added = await export_dataset(bus, target, SftRows(), layout, existing="append")
        assert (len(added.runs), [f["rows"] for f in added.files.values()]) == (2, [2])
        replaced = await export_dataset(bus, target, SftRows(), layout, existing="replace")
        assert len(replaced.runs) == 1

    async def test_what_is_no_export_is_never_touched(self, bus: MemoryBus, tmp_path: Path) -> None:
        """A directory with anything else in it, even with `replace`; an empty one is fine."""
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("42")
        for wish in ("refuse", "append", "replace"):
            with pytest.raises(ExportPlaceError, match="no whole export of ours"):
                await export_dataset(bus, tmp_path / "mine", SftRows(), Layout(), existing=wish)  # type: ignore[arg-type]
        (tmp_path / "empty").mkdir()
        await export_dataset(bus, tmp_path / "empty", SftRows(), Layout())
        with pytest.raises(ExportPlaceError, match="directory"):
            await export_dataset(bus, tmp_path / "x.jsonl", SftRows(), Layout(format="parquet"))

    async def test_other_options_are_refused(self, bus: MemoryBus, tmp_path: Path) -> None:
        """Named; rows of two kinds in one data set would be nobody's."""
        await publish(bus, run("a"))
        await export_dataset(bus, tmp_path / "d", SftRows(), Layout())
        with pytest.raises(ManifestError, match=r"other options \(arguments\)"):
            await export_dataset(
                bus, tmp_path / "d", SftRows(shape=Shape(arguments="object")), Layout(), existing="append"
            )

    async def test_a_damaged_export_is_refused(self, bus: MemoryBus, tmp_path: Path) -> None:
        """A file that isn't as long as its manifest says, a manifest that is none."""
        await publish(bus, run("a"))
        await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout())
        (tmp_path / "f.jsonl").write_text("")
        with pytest.raises(ManifestError, match="isn't what its manifest says"):
            await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout(), existing="append")
        (tmp_path / "f.jsonl.manifest.json").write_text("{")
        with pytest.raises(ManifestError, match="no manifest"):
            await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout(), existing="append")

    @pytest.mark.parametrize("target", ["d", "f.jsonl"])
    async def test_what_fails_half_way_leaves_the_old_one(
        self, bus: MemoryBus, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing half-written, nothing left over."""
        await publish(bus, run("a"))
        await export_dataset(bus, tmp_path / target, SftRows(), Layout())
        before = files(tmp_path)

        def broken(*_: Any) -> str:
            raise OSError("disk full")

        monkeypatch.setattr(Manifest, "text", broken)
        with pytest.raises(OSError, match="disk full"):
            await export_dataset(bus, tmp_path / target, SftRows(), Layout(), existing="replace")
        assert files(tmp_path) == before

    async def test_what_a_killed_run_left_is_cleared_away(self, bus: MemoryBus, tmp_path: Path) -> None:
        """Also when it died between the two renames: the export that it was about to replace comes back first."""
        await publish(bus, run("a"))
        await export_dataset(bus, tmp_path / "d", SftRows(), Layout())
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        part = tmp_path / f".d.{dead.pid}.part"
        part.mkdir()
        (tmp_path / "d").rename(part / "old")
        running = tmp_path / f".d.{os.getppid()}.part"
        running.mkdir()
        with pytest.raises(ExportPlaceError, match="holds an export"):
            await export_dataset(bus, tmp_path / "d", SftRows(), Layout())
        assert not part.exists()
        assert running.exists()


class TestLogs:
    """Which log an export goes on from."""

    async def exported(self, bus: Bus, target: Path) -> None:
        await publish(bus, *(run(f"t{n}") for n in range(4)))
        await export_dataset(bus, target, SftRows(), Layout())

    async def test_a_log_made_anew_is_refused(self, bus: MemoryBus, tmp_path: Path) -> None:
        """Shorter, with other partitions, or with other records at the same offsets."""
        await self.exported(bus, tmp_path / "d")
        for partitions, records, match in (
            (2, [], "made anew"),
            (3, [], "another log"),
            (2, [run(f"u{n}") for n in range(9)], "isn't the record"),
        ):
            async with MemoryBus(partitions=partitions) as other:
                await publish(other, *records)
                with pytest.raises(ExportSourceError, match=match):
                    await export_dataset(other, tmp_path / "d", SftRows(), Layout(), existing="append")

    async def test_records_that_retention_took_are_not_skipped_in_silence(
        self, bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error names them; an archive has them still."""
        await self.exported(bus, tmp_path / "d")
        await archive(bus, tmp_path / "archive")

        async def gone(*_: Any, **__: Any) -> Any:
            raise BusRefusedError("trajectory.scored[0] begins at 9 by now: retention has taken [2, 9).")
            yield

        monkeypatch.setattr(bus, "tail", gone)
        with pytest.raises(ExportSourceError, match=r"retention has taken \[2, 9\).*--archive"):
            await export_dataset(bus, tmp_path / "d", SftRows(), Layout(), existing="append")
        past = ArchiveLog(tmp_path / "archive")
        manifest = await export_dataset(past, tmp_path / "d", SftRows(), Layout(), existing="append")
        assert manifest.runs[1].counts.records == 0

    async def test_partitions_that_are_empty_yet(self, tmp_path: Path) -> None:
        """An archive knows only of those with records; that makes it no other log, in either direction."""
        async with MemoryBus(partitions=5) as bus:
            await publish(bus, run("a"))
            await archive(bus, tmp_path / "archive")
            past = ArchiveLog(tmp_path / "archive")
            await export_dataset(bus, tmp_path / "one", SftRows(), Layout())
            await export_dataset(past, tmp_path / "two", SftRows(), Layout())
            assert files(tmp_path / "one") == files(tmp_path / "two")
            await export_dataset(past, tmp_path / "one", SftRows(), Layout(), existing="append")
            await publish(bus, *(run(f"t{n}") for n in range(9)))
            manifest = await export_dataset(bus, tmp_path / "two", SftRows(), Layout(), existing="append")
            assert manifest.runs[1].counts.exported == 9

    async def test_what_comes_while_it_reads_is_for_the_next_run(self, bus: MemoryBus, tmp_path: Path) -> None:
        """The end is the one that the log had at the beginning: the manifest and the rows agree."""
        await publish(bus, run("a"))
        ends = bus.end_offsets

        async def late(topic: str) -> dict[int, int]:
            found = await ends(topic)
            await publish(bus, run("b"))
            return found

        bus.end_offsets = late  # type: ignore[method-assign]
        manifest = await export_dataset(bus, tmp_path / "d", SftRows(), Layout())
        assert (manifest.runs[0].counts.records, sum(manifest.runs[0].span.end.values())) == (1, 1)


async def test_ten_thousand_tokens(bus: MemoryBus, tmp_path: Path) -> None:
    """Long sessions keep every turn."""
    messages = talk(steps=400)
    await publish(bus, run("a", traces=[traced(messages, size=10_000)]))
    await export_dataset(bus, tmp_path / "f.jsonl", SftRows(), Layout())
    (row,) = lines(tmp_path / "f.jsonl")
    assert (row["messages"], row["tokens"], row["turns"]) == (messages, 10_000, 401)


async def test_without_pyarrow_lines_are_written_and_parquet_says_what_to_install(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON lines need nothing but the library."""
    await publish(bus, run("a", 0, *talk()[:2], calls({"id": "", "function": {"name": "f", "arguments": "{}"}})))
    for name in [n for n in sys.modules if n == "pyarrow" or n.startswith("pyarrow.")]:
        monkeypatch.setitem(sys.modules, name, None)
    await export_dataset(bus, tmp_path / "d", SftRows(), Layout())
    assert len(lines(tmp_path / "d" / "data" / "train-00000-of-00001.jsonl")) == 1
    with pytest.raises(ExportDependencyError, match=r"polynya\[trainer\]"):
        await export_dataset(bus, tmp_path / "p", SftRows(), Layout(format="parquet"))
    await asyncio.sleep(0)
