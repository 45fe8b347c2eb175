"""`polynya replay`, `archive` and `export completions` as a person types them, over an archive; and the outputs on their own."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from bus.archive import archive
from bus.memory import MemoryBus
from compose.cli import main
from compose.cli.log_source import point_in_time, time_span
from compose.errors import CommandError
from compose.replay_out import Checkpoint, FileOutput, TopicOutput, replay_topic
from schemas.records import Trajectory
from schemas.topics import Topic, TopicKind
from stream_processors.replay import Wanted, replay
from tests.stream_processors.test_replay import Kept, play, session


@pytest.fixture
async def archived(tmp_path: Path) -> Path:
    """An archive of six sessions whose second call has a re-tokenised history."""
    async with MemoryBus(partitions=2) as bus:
        await play(bus, *(session(n) for n in range(1, 7)))
        await archive(bus, tmp_path / "archive")
    return tmp_path / "archive"


async def run(*arguments: object) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, main.app, [str(a) for a in arguments])


async def test_replay_into_lines(archived: Path, tmp_path: Path) -> None:
    """One JSON document per trajectory; the same command again gives the same bytes; nothing else is left behind."""
    out = tmp_path / "out" / "t.jsonl"
    done = await run("replay", "--archive", archived, "--builder", "per_request", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["trajectories"], result["traces"], result["calls"]["trained"]) == (6, 18, 18)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["builder"] for line in lines} == {"per_request"}
    assert lines[0]["traces"][0]["loss_mask"] == [1, 1, 1]
    before = out.read_bytes()
    await run("replay", "--archive", archived, "--builder", "per_request", "--out", out)
    assert out.read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == ["t.jsonl"]


async def test_replay_into_parquet_with_another_drift(archived: Path, tmp_path: Path) -> None:
    """One row per trace, in the columns of an export; spliced traces say so."""
    out = tmp_path / "t.parquet"
    done = await run("replay", "--archive", archived, "--drift", "splice", "--out", out)
    assert done.exit_code == 0, done.output
    rows = pq.read_table(out).to_pylist()
    assert [row["is_off_context"] for row in rows] == [True] * 6
    assert rows[0]["loss_mask"] == [1, 1, 1, 0, 1, 1, 0, 1, 1]
    assert (rows[0]["weight"], rows[0]["builder"], rows[0]["reward"]) == (1.0, "prefix_merging", None)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("saves", [0, 1, 3])
async def test_a_file_goes_on_from_its_checkpoint(tmp_path: Path, suffix: str, saves: int) -> None:
    """Stopped after some pieces and one half-written, then again: the file of a replay that never stopped."""
    async with MemoryBus(partitions=1) as bus:
        await play(bus, *(session(n) for n in range(1, 7)))
        kept = Kept()
        await replay(bus, Wanted(), kept)
    expected = await _write(tmp_path / f"whole{suffix}", kept.saved, [])
    path = tmp_path / f"cut{suffix}"
    first = FileOutput(path, Checkpoint(tmp_path / "c", [], (None, None)))
    first.resume(None)
    for n in range(saves):
        await first.put(kept.saved[n])
        await first.save({"n": n + 1})
    await first.put(kept.saved[saves])
    first.abandon()  # written, but no checkpoint knows
    checkpoint = Checkpoint(tmp_path / "c", [], (None, None))
    saved = checkpoint.load()
    assert (saved or {"n": 0})["n"] == saves
    second = FileOutput(path, checkpoint)
    second.resume(saved)
    for trajectory in kept.saved[saves:]:
        await second.put(trajectory)
    await second.save({})
    second.finish()
    assert _content(path) == _content(expected)
    assert not path.with_name(f".{path.name}.parts").exists()


async def test_a_kill_behind_the_last_piece_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is whole, its pieces aren't all cleared away: the checkpoint went first, so the next run begins anew."""
    async with MemoryBus(partitions=1) as bus:
        await play(bus, session(1), session(2))
        kept = Kept()
        await replay(bus, Wanted(), kept)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "t.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            await _write(path, kept.saved, [])
    whole = path.read_text()
    assert Checkpoint(path.with_name("w"), [], (None, None)).load() is None
    assert (await _write(path, kept.saved, [])).read_text() == whole
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


async def test_a_piece_that_is_gone_is_named(tmp_path: Path) -> None:
    """Before anything is read again, not at the end."""
    output = FileOutput(tmp_path / "t.jsonl", Checkpoint(tmp_path / "c", [], (None, None)))
    with pytest.raises(CommandError, match=r"00000000\.jsonl, a piece that the last run wrote, is gone"):
        output.resume({"pieces": 1})


async def test_a_torn_archive_is_an_error_of_the_command(archived: Path, tmp_path: Path) -> None:
    """It names the file and exits with 1."""
    path = next(archived.glob("capture.completions/*/*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    done = await run("replay", "--archive", archived, "--out", tmp_path / "t.jsonl")
    assert isinstance(done.exception, CommandError)
    assert path.name in str(done.exception)
    assert int(done.exception.code) == 1


async def _write(path: Path, trajectories: list[Trajectory], _: list[int]) -> Path:
    output = FileOutput(path, Checkpoint(path.with_name("w"), [], (None, None)))
    output.resume(None)
    for trajectory in trajectories:
        await output.put(trajectory)
    await output.save({})
    output.finish()
    return path


def _content(path: Path) -> Any:
    return pq.read_table(path).to_pylist() if path.suffix == ".parquet" else path.read_text()


async def test_a_topic_gets_trajectories_under_their_own_event_ids(tmp_path: Path) -> None:
    """Put twice, it is one event; large ones travel by claim check."""
    topic = Topic("trajectory.replay.x", TopicKind.FACT, "session_id", ("trajectory",), 1)
    async with MemoryBus(partitions=2, topics=[topic]) as bus:
        await play(bus, session(1))
        output = TopicOutput(bus, topic.name, Checkpoint(tmp_path / "c.json", [], (None, None)))
        await replay(bus, Wanted("per_request"), output)
        await replay(bus, Wanted("per_request"), output)
        one, other = bus.records(topic.name)
        assert one.headers["ce_id"] == other.headers["ce_id"]
        assert one.key == b"session-1"
        record = one.decode()
        assert isinstance(record, Trajectory)
        assert len(record.traces) == 3
    assert json.loads((tmp_path / "c.json").read_text())["done"] == [0, 1]


@pytest.mark.parametrize("name", ["trajectory.built", "trajectory.replay.", "out.csv", "somewhere"])
def test_no_other_topic_is_written(name: str) -> None:
    """What a replay makes must not reach the joiner by mistake."""
    with pytest.raises(CommandError, match="neither a file"):
        replay_topic(name, 1)


def test_a_checkpoint_belongs_to_its_arguments_and_keeps_its_span(tmp_path: Path) -> None:
    """`2h` means what it meant when the replay began; other arguments are another replay."""
    first = Checkpoint(tmp_path / "c", ["2h"], (1000, None))
    first.save({"done": [1]})
    again = Checkpoint(tmp_path / "c", ["2h"], (9000, None))
    assert again.load() == {"done": [1]}
    assert again.span == (1000, None)
    with pytest.raises(CommandError, match="other arguments"):
        Checkpoint(tmp_path / "c", ["3h"], (1000, None)).load()


async def test_mistakes_are_named(archived: Path, tmp_path: Path) -> None:
    """Usage errors, before anything is read."""
    for arguments, words in (
        (["--builder", "nonsense"], "no builder"),
        (["--builder", "per_request", "--drift", "splice"], "no option"),
        (["--from", "yesterday"], "no point in time"),
        (["--from", "latest"], "no point in time"),
        (["--from", "1234567890"], "12 digits or more"),
        (["--from", "1h", "--to", "2h"], "isn't before"),
        (["--from", "2026-05-01", "--to", "20260501"], "isn't before"),
    ):
        done = await run("replay", "--archive", archived, "--out", tmp_path / "o.jsonl", *arguments)
        assert done.exit_code != 0
        assert words in str(done.exception)
    done = await run("replay", "--archive", tmp_path / "none", "--out", tmp_path / "o.jsonl")
    assert "no archive" in str(done.exception)


def test_points_in_time() -> None:
    """ISO 8601 with and without a zone (then UTC), a bare date, epoch ms, a while ago, no limit."""
    assert point_in_time("--from", "1970-01-01T00:00:01Z") == point_in_time("--from", "1970-01-01T00:00:01") == 1000
    assert point_in_time("--from", "1795992482527") == 1795992482527
    assert point_in_time("--from", "0") == 0
    assert point_in_time("--from", "20260501") == point_in_time("--from", "2026-05-01") == 1_777_593_600_000
    assert point_in_time("--from", "earliest") is point_in_time("--to", None) is point_in_time("--to", "latest") is None
    assert time_span("20260501", "20260502") == (1_777_593_600_000, 1_777_680_000_000)
    ago = point_in_time("--from", "2h")
    assert ago is not None
    assert abs(time.time() * 1000 - 7_200_000 - ago) < 60_000


async def test_a_session_is_named_by_the_start_of_its_id(archived: Path, tmp_path: Path) -> None:
    """One that doesn't exist, or isn't the only one, is a mistake, not an empty file."""
    for arguments in (("replay", "--out", tmp_path / "t.jsonl"), ("export", "completions", tmp_path / "c.parquet")):
        for said, named in ((("session-9",), "no session"), (("session-",), "6 sessions")):
            done = await run(*arguments, "--archive", archived, "--session", *said)
            assert isinstance(done.exception, CommandError), done.output
            assert named in str(done.exception)
    assert list(tmp_path.iterdir()) == [archived]
    done = await run("replay", "--archive", archived, "--out", tmp_path / "t.jsonl", "--session", "session-3", "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["trajectories"], result["skipped"]) == (1, {"other_session": 5})


async def test_export_completions(archived: Path, tmp_path: Path) -> None:
    """From an archive into one file; the numbers are told."""
    out = tmp_path / "calls.parquet"
    done = await run("export", "completions", out, "--archive", archived, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["rows"], report["sessions"], report["sampled_tokens"]) == (18, 6, 6 * 7)
    assert pq.read_table(out).num_rows == 18
