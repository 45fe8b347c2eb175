"""`polynya export sft`, `preferences`, `hf` and `parquet` as a person types them, over an archive."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from bus.archive import archive
from bus.memory import MemoryBus
from compose.cli import main
from schemas.records import Status
from tests.trainer_sink.export.talks import run as session
from tests.trainer_sink.export.talks import talk


@pytest.fixture
async def archived(tmp_path: Path) -> Path:
    """An archive of three tasks: one solved twice, one once of two tries, one that ran out of time."""
    async with MemoryBus(partitions=2) as bus:
        for record in (
            session("repo-a/1", 0, group_size=2, spec={"metadata": {"repo": "a/a"}}),
            session("repo-a/1", 1, group_size=2, spec={"metadata": {"repo": "a/a"}}),
            session("repo-b/1", 0, *talk("yes"), group_size=2, spec={"metadata": {"repo": "b/b"}}),
            session("repo-b/1", 1, *talk("no"), group_size=2, reward=0.0, spec={"metadata": {"repo": "b/b"}}),
            session("c", 0, status=Status.TIMEOUT, reward=None, spec={"harness": "pi"}),
        ):
            await bus.publish(record)
        await archive(bus, tmp_path / "archive")
    return tmp_path / "archive"


async def run(*arguments: object) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, main.app, ["export", *map(str, arguments)])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


async def test_sft(archived: Path, tmp_path: Path) -> None:
    """Says what is in the file and what isn't, to people and to machines."""
    out = tmp_path / "sft.jsonl"
    done = await run("sft", out, "--archive", archived)
    assert done.exit_code == 0, done.output
    assert "sft.jsonl: 3 train rows; 3 of 5 sessions" in done.stdout.replace("\n", "")
    assert "sessions left out: 1 reward, 1 status_timeout" in done.stderr
    assert [r["task_id"] for r in rows(out)] == ["repo-a/1", "repo-a/1", "repo-b/1"]
    again = await run("sft", out, "--archive", archived, "--replace", "--where", "repo=b/*", "--json")
    told = json.loads(again.stdout)
    assert (told["files"], told["counts"]["refused"]) == ({"sft.jsonl": 1}, {"metadata": 3, "reward": 1})
    assert told["source"]["topic"] == "trajectory.scored"


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        (["--task", "repo-a/*"], ["repo-a/1"] * 2),
        (["--min-reward", "0"], ["repo-a/1"] * 2 + ["repo-b/1"] * 2),
        (["--status", "timeout", "--min-reward", "nan"], []),
        (["--harness", "pi"], []),
        (["--policy", "other"], []),
        (["--max-tokens", "5"], []),
        (["--branch", "aux"], []),
        (["--from", "2031-01-01"], []),
        (["--to", "0:0,1:0"], []),
    ],
)
async def test_what_is_chosen(archived: Path, tmp_path: Path, options: list[str], tasks: list[str]) -> None:
    """Each option reaches the library."""
    done = await run("sft", tmp_path / "f.jsonl", "--archive", archived, *options)
    assert done.exit_code == 0, done.output
    assert [r["task_id"] for r in rows(tmp_path / "f.jsonl")] == tasks


async def test_preferences(archived: Path, tmp_path: Path) -> None:
    """One pair; the tie and what isn't accepted are counted."""
    done = await run("preferences", tmp_path / "p.jsonl", "--archive", archived, "--margin", "0.5")
    assert done.exit_code == 0, done.output
    (row,) = rows(tmp_path / "p.jsonl")
    assert (row["chosen"][-1]["content"], row["rejected"][-1]["content"]) == ("yes", "no")
    assert "groups without a pair: 1 status_timeout, 1 tie" in done.stderr


@pytest.mark.parametrize(("kind", "count"), [("traces", 5), ("sft", 3), ("preferences", 1)])
async def test_hf(archived: Path, tmp_path: Path, kind: str, count: int) -> None:
    """Shards, a card, a manifest."""
    done = await run("hf", tmp_path / "d", "--archive", archived, "--rows", kind, "--license", "mit")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["README.md", "data", "manifest.json"]
    assert pq.read_table(tmp_path / "d" / "data" / "train-00000-of-00001.parquet").num_rows == count
    assert 'license: "mit"' in (tmp_path / "d" / "README.md").read_text()


@pytest.mark.parametrize(
    "options", [["--branch", "aux"], ["--max-tokens", "9"], ["--tools", "string"], ["--margin", "1"]]
)
async def test_hf_refuses_what_would_change_nothing(archived: Path, tmp_path: Path, options: list[str]) -> None:
    """Rows of traces aren't chosen or spelt like conversations, and have no margin."""
    done = await run("hf", tmp_path / "d", "--archive", archived, *options)
    assert done.exit_code != 0
    assert f"{options[0]}" in str(done.exception)
    assert not (tmp_path / "d").exists()


async def test_parquet_from_an_archive(archived: Path, tmp_path: Path) -> None:
    """As from Kafka."""
    done = await run("parquet", tmp_path / "t.parquet", "--archive", archived, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sessions"] == 5
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--append", "--replace"], "not both"),
        (["--append", "--from", "2h"], "leave out --from"),
        (["--from", "yesterday"], "is no point in time"),
        (["--to", "12"], "is no list of offsets"),
        (["--to", "7:1"], "ends at nothing"),
        (["--where", "repo"], "is no KEY=VALUE"),
        (["--status", "fine"], "must be one of"),
    ],
)
async def test_what_is_refused_is_explained(archived: Path, tmp_path: Path, options: list[str], says: str) -> None:
    """Nothing is written."""
    done = await run("sft", tmp_path / "f.jsonl", "--archive", archived, *options)
    assert done.exit_code != 0
    assert says in str(done.exception)
    assert not (tmp_path / "f.jsonl").exists()


async def test_an_export_that_is_there(archived: Path, tmp_path: Path) -> None:
    """Stays, until one says what is to become of it."""
    assert (await run("sft", tmp_path / "d", "--archive", archived)).exit_code == 0
    refused = await run("sft", tmp_path / "d", "--archive", archived)
    assert "--append adds what came since" in str(refused.exception)
    assert (await run("sft", tmp_path / "d", "--archive", archived, "--append")).exit_code == 0


@pytest.mark.parametrize("command", ["sft", "preferences", "hf", "parquet", "completions"])
async def test_help(command: str) -> None:
    """Each command says what it writes; those with many options show a line to begin with."""
    done = await run(command, "--help")
    assert done.exit_code == 0
    if command in {"sft", "preferences", "hf"}:
        assert f"polynya export {command} " in done.stdout
