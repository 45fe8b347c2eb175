"""The export of calls: prompts and messages whole, everything counted, a lease at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from bus.archive import ArchiveLog, archive
from bus.memory import MemoryBus
from schemas import ids
from schemas.arrays import pack_ids, pack_logprobs
from schemas.records import (
    CallError,
    CompletionDelivery,
    CompletionRecord,
    CompletionState,
    SessionOpened,
    SessionSealed,
    VersionSpan,
)
from trainer_sink.export.completions import export_completions

USER, TOOL = {"role": "user", "content": "u"}, {"role": "tool", "content": "r"}


def call(seq: int, suffix: list[int], output: list[int], *, session: str = "s1", **fields: Any) -> CompletionRecord:
    lease = ids.lease_id(session, 1)
    base: dict[str, Any] = {
        "session_id": session,
        "lease_id": lease,
        "policy_id": "p",
        "call_seq": seq,
        "completion_id": ids.completion_id(lease, 1, seq),
        "state": CompletionState.FINISHED,
        "suffix_ids": pack_ids(suffix),
        "output_ids": pack_ids(output),
        "logprobs": pack_logprobs([-0.5] * len(output)),
        "text": "a",
        "started_at": 1_000 * seq,
    }
    return CompletionRecord(**{**base, **fields})


def delta(seq: int, parent: CompletionRecord, prefix: list[int], suffix: list[int], **fields: Any) -> CompletionRecord:
    return call(
        seq,
        suffix,
        [20],
        parent_id=parent.completion_id,
        prefix_len=len(prefix),
        prefix_digest=ids.digest(pack_ids(prefix)),
        messages=[TOOL],
        messages_prefix=2,
        **fields,
    )


FIRST = call(1, [1, 2], [10, 11], messages=[USER], tools=[{"name": "ls"}], tools_digest="t")
SECOND = delta(2, FIRST, [1, 2, 10, 11], [50], tools_digest="t")


async def exported(path: Path, *records: Any, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    async with MemoryBus(partitions=2) as bus:
        for record in records:
            await bus.publish(record)
        report = await export_completions(bus, path / "calls.parquet", **options)
    return report, pq.read_table(path / "calls.parquet").to_pylist()


async def test_prompts_messages_and_tools_are_whole(tmp_path: Path) -> None:
    """A delta's row has what the engine read, what was said before, and the tools that its record only names."""
    place = {"session_id": "s1", "lease_id": FIRST.lease_id, "writer": 1}
    arrived = CompletionDelivery(**place, call_seq=1, completion_id=FIRST.completion_id, delivered=True)
    report, rows = await exported(tmp_path, SECOND, FIRST, arrived, SessionSealed(**place, last_seq=2))
    first, second = rows
    assert (second["prompt_ids"], second["output_ids"], second["new_prompt_tokens"]) == ([1, 2, 10, 11, 50], [20], 1)
    assert json.loads(second["messages"]) == [USER, {"role": "assistant", "content": "a"}, TOOL]
    assert json.loads(second["tools"]) == [{"name": "ls"}]
    assert (first["is_delivered"], second["is_delivered"]) == (True, None)
    assert (first["source_offset"], second["source_offset"]) == (1, 0)
    assert first["started_at"].timestamp() == 1.0
    assert (report.rows, report.sessions, report.prompt_tokens, report.sampled_tokens) == (2, 1, 7, 3)


async def test_what_cannot_be_told_is_counted(tmp_path: Path) -> None:
    """A parent that isn't there, torn arrays, poison: rows without a prompt, and numbers."""
    orphan = replace(SECOND, parent_id="nobody")
    torn = call(3, [5], [6], suffix_ids=b"12345")
    async with MemoryBus(partitions=1) as bus:
        for record in (FIRST, orphan, torn):
            await bus.publish(record)
        await bus.publish_raw("capture.completions", b"s1", b"no avro")
        report = await export_completions(bus, tmp_path / "calls.parquet")
    rows = pq.read_table(tmp_path / "calls.parquet").to_pylist()
    assert [r["prompt_problem"] for r in rows] == ["", "parent_missing", "torn_array"]
    assert [r["prompt_ids"] for r in rows] == [[1, 2], [], []]
    assert (report.unresolved, report.unreadable) == ({"parent_missing": 1, "torn_array": 1}, 1)


async def test_a_failed_call_has_a_row_with_its_error(tmp_path: Path) -> None:
    """Nothing is left out because it went wrong."""
    failed = call(1, [1], [], state=CompletionState.FAILED, error=CallError(kind="busy", status=503))
    _, (row,) = await exported(tmp_path, failed)
    assert (row["state"], row["error_kind"], row["error_status"], row["output_ids"]) == ("failed", "busy", 503, [])


async def test_filters(tmp_path: Path) -> None:
    """By policy and by session."""
    records = [FIRST, call(1, [9], [9], session="s2"), call(2, [8], [8], policy_id="judge")]
    assert len((await exported(tmp_path, *records, policy_id="judge"))[1]) == 1
    assert [r["session_id"] for r in (await exported(tmp_path, *records, session_id="s2"))[1]] == ["s2"]


async def test_an_empty_log_gives_a_file_with_all_columns(tmp_path: Path) -> None:
    """So that readers don't stumble."""
    report, rows = await exported(tmp_path)
    assert (report.rows, rows) == (0, [])
    assert "prompt_ids" in pq.read_schema(tmp_path / "calls.parquet").names


async def test_an_archive_gives_the_same_file(tmp_path: Path) -> None:
    """Byte for byte the same rows."""
    async with MemoryBus(partitions=2) as bus:
        for n in range(5):
            await bus.publish(call(1, [n, 1], [10], session=f"s{n}"))
        await export_completions(bus, tmp_path / "log.parquet")
        await archive(bus, tmp_path / "archive")
    await export_completions(ArchiveLog(tmp_path / "archive"), tmp_path / "archive.parquet")
    assert pq.read_table(tmp_path / "archive.parquet").equals(pq.read_table(tmp_path / "log.parquet"))


def _queries() -> list[str]:
    """The queries that the page for users shows."""
    page = (Path(__file__).parents[3] / "docs" / "replay.md").read_text()
    return [block.partition("```")[0] for block in page.split("```sql\n")[1:]]


@pytest.mark.parametrize("number", range(len(_queries())))
async def test_documented_queries_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Every query of docs/replay.md gives rows over files of ours."""
    from tests.compose.cli.test_replay import run as command
    from tests.stream_processors.test_replay import play, session

    monkeypatch.chdir(tmp_path)
    async with MemoryBus(partitions=2) as bus:
        await play(bus, session(1), session(2))
        spans = [VersionSpan(version="v1", start=0, end=2)]
        await bus.publish(call(1, [1, 2], [10, 11], session="s9", version_spans=spans, untrainable_reason="side"))
        from schemas.records import Reward

        await bus.publish(
            Reward(session_id="session-1", lease_id=ids.lease_id("session-1", 1), name="reward", value=1.0)
        )
        await archive(bus, tmp_path / "archive")
        await export_completions(bus, tmp_path / "calls.parquet")
    for builder in ("prefix_merging", "per_request"):
        done = await command("replay", "--archive", "archive", "--builder", builder, "--out", f"{builder}.parquet")
        assert done.exit_code == 0, done.output
    assert duckdb.sql(_queries()[number]).fetchall()


def _opened(session: str, **fields: Any) -> SessionOpened:
    return SessionOpened(session_id=session, lease_id=ids.lease_id(session, 1), **fields)


class Clocked(MemoryBus):
    """A log whose records say the time that the test says; tells from where it was read."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.starts: list[Any] = []

    def tail(self, *args: Any, **options: Any) -> Any:
        """Notes where a reader begins."""
        self.starts.append(options["start"])
        return super().tail(*args, **options)


@pytest.mark.parametrize("opening", [True, False], ids=["opening-known", "opening-lost"])
async def test_a_session_is_read_from_its_beginning(
    tmp_path: Path, opening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls from a point in time on have whole prompts though their parents lie before it, and those have no row."""
    hour = 3_600_000
    now = 1_000 * hour
    long_ago = now - 70 * hour
    moments = [long_ago - hour, long_ago - hour, long_ago, long_ago, now, now + 1]
    other = call(1, [9], [9], session="s2")
    async with Clocked() as bus:
        opened = _opened("s1") if opening else other
        for moment, record in zip(moments, [other, opened, FIRST, _opened("s1", writer=2), SECOND, other], strict=True):
            monkeypatch.setattr("bus.memory.time.time_ns", lambda moment=moment: moment * 1_000_000)
            await bus.publish(record)
        report = await export_completions(bus, tmp_path / "calls.parquet", start=now, session_id="s1")
        starts = [start if isinstance(start, str) else (now - start) // hour for start in bus.starts]
    (row,) = pq.read_table(tmp_path / "calls.parquet").to_pylist()
    assert (row["call_seq"], row["prompt_ids"], row["prompt_problem"]) == (2, [1, 2, 10, 11, 50], "")
    assert json.loads(row["messages"])[0] == USER
    assert (report.rows, report.unresolved) == (1, {})
    assert starts == ([0, 1, 8, 64, 512, 512] if opening else [0, 1, 8, 64, 512, "earliest"])
