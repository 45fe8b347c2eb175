"""Preference pairs: the same prompt answered better and worse, ties skipped, every session accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.records import ScoredTrajectory, Status
from tests.trainer_sink.export.talks import BASH, READ, SYSTEM, USER, call, calls, result, run, says, traced
from trainer_sink.export.dataset import Layout, export_dataset
from trainer_sink.export.manifest import Counts
from trainer_sink.export.preferences import PreferenceRows


def session(task: str, index: int, size: int, reward: float | None, *, said: str = "", **more: Any) -> ScoredTrajectory:
    messages = [SYSTEM, USER, calls(call("read", {"n": index})), result("x"), says(said or f"answer {index}")]
    return run(task, index, *messages, group_size=size, reward=reward, **more)


async def pairs(
    bus: MemoryBus, path: Path, *records: ScoredTrajectory, existing: Any = "refuse", **options: Any
) -> tuple[list[dict[str, Any]], Counts]:
    for record in records:
        await bus.publish(record)
    manifest = await export_dataset(bus, path, PreferenceRows(**options), Layout(), existing=existing)
    return [json.loads(line) for line in path.read_text().split("\n") if line], manifest.runs[-1].counts


async def test_the_best_with_the_worst(bus: MemoryBus, tmp_path: Path) -> None:
    """The prompt is what stands before the first answer; each side keeps its calls and results."""
    group = [session("t", i, 4, reward) for i, reward in enumerate((0.2, 1.0, 0.5, 0.0))]
    (row,), counts = await pairs(bus, tmp_path / "p.jsonl", *group)
    assert row["prompt"] == [SYSTEM, USER]
    assert [m["role"] for m in row["chosen"]] == ["assistant", "tool", "assistant"]
    assert (row["chosen"][-1]["content"], row["rejected"][-1]["content"]) == ("answer 1", "answer 3")
    assert (row["score_chosen"], row["score_rejected"], row["margin"]) == (1.0, 0.0, 1.0)
    assert row["tools"] == [READ]
    assert row["session_rejected"] == ids.session_id(ids.group_id("t"), 3)
    assert (counts.sessions, counts.exported, counts.refused) == (4, 2, {"unpaired": 2})
    assert (counts.groups, counts.groups_exported) == (1, 1)


async def test_more_pairs_of_a_group_share_no_session(bus: MemoryBus, tmp_path: Path) -> None:
    """The second best with the second worst, the widest first."""
    group = [session("t", i, 5, reward) for i, reward in enumerate((0.2, 1.0, 0.5, 0.9, 0.0))]
    rows, counts = await pairs(bus, tmp_path / "p.jsonl", *group, per_group=9)
    assert [(r["score_chosen"], r["score_rejected"]) for r in rows] == [(1.0, 0.0), (0.9, 0.2)]
    assert counts.refused == {"unpaired": 1}


@pytest.mark.parametrize(
    ("reason", "group", "options"),
    [
        ("tie", [session("t", 0, 2, 1.0), session("t", 1, 2, 1.0)], {}),
        ("margin", [session("t", 0, 2, 1.0), session("t", 1, 2, 0.6)], {"margin": 0.5}),
        ("too_few", [session("t", 0, 2, 1.0), session("t", 1, 2, None)], {}),
        ("too_few", [session("t", 0, 2, 1.0), session("t", 1, 2, 0.0, status=Status.FAILED)], {}),
        ("incomplete", [session("t", 0, 3, 1.0), session("t", 1, 3, 0.0)], {}),
        ("same_answer", [run("t", i, USER, says("a"), group_size=2, reward=float(i)) for i in range(2)], {}),
    ],
)
async def test_why_a_group_has_no_pair(
    bus: MemoryBus, tmp_path: Path, reason: str, group: list[ScoredTrajectory], options: dict[str, Any]
) -> None:
    """Ties are skipped and counted, and so is everything else."""
    rows, counts = await pairs(bus, tmp_path / "p.jsonl", *group, **options)
    assert rows == []
    assert counts.groups_refused == {reason: 1}
    assert sum(counts.refused.values()) == len(group)


async def test_prompts_that_differ_are_no_pair(bus: MemoryBus, tmp_path: Path) -> None:
    """A harness that writes its directory or the date into the prompt, or other tools."""
    other = [{"role": "user", "content": "in /tmp/b"}, says("y")]
    group = [
        run("t", 0, {"role": "user", "content": "in /tmp/a"}, says("x"), group_size=3),
        run("t", 1, *other, group_size=3, reward=0.0),
        run("t", 2, traces=[traced(other, tools=[BASH])], group_size=3, reward=1.0),
    ]
    _, counts = await pairs(bus, tmp_path / "p.jsonl", *group)
    assert counts.groups_refused == {"prompt_differs": 1}
    assert counts.refused == {"prompt_differs": 3}


async def test_sessions_that_cannot_be_compared_are_named(bus: MemoryBus, tmp_path: Path) -> None:
    """Several conversations have no one prompt; one that the assistant began has none."""
    compacted = run(
        "t", 2, traces=[traced([USER, says("a")]), traced([SYSTEM, USER, says("b")], index=1)], group_size=5
    )
    begun = run("t", 3, says("hello"), group_size=5)
    told = run("t", 4, SYSTEM, says("hello"), group_size=5)
    group = [session("t", 0, 5, 1.0), session("t", 1, 5, 0.0), compacted, begun, told]
    rows, counts = await pairs(bus, tmp_path / "p.jsonl", *group)
    assert len(rows) == 1
    assert counts.refused == {"several_conversations": 1, "no_prompt": 2}


async def test_a_group_that_was_open_is_read_again(bus: MemoryBus, tmp_path: Path) -> None:
    """By the next run, from its first session on; groups that have pairs already give no more."""
    path = tmp_path / "p.jsonl"
    early = [session("a", 0, 2, 1.0), session("b", 0, 2, 1.0), session("b", 1, 2, 0.0)]
    rows, counts = await pairs(bus, path, *early)
    assert [r["task_id"] for r in rows] == ["b"]
    assert counts.groups_refused == {"incomplete": 1}
    rows, counts = await pairs(bus, path, session("a", 1, 2, 0.0), session("c", 0, 2, 0.0), existing="append")
    assert [r["task_id"] for r in rows] == ["b", "a"]
    assert counts.groups_refused["incomplete"] == 1
    rows, counts = await pairs(bus, path, session("c", 1, 2, 1.0), existing="append")
    assert [r["task_id"] for r in rows] == ["b", "a", "c"]


async def test_incomplete_groups_when_asked_for(bus: MemoryBus, tmp_path: Path) -> None:
    """For a log whose end one doesn't wait for."""
    early = [session("a", 0, 3, 1.0), session("a", 1, 3, 0.0)]
    rows, _ = await pairs(bus, tmp_path / "p.jsonl", *early, allow_incomplete=True)
    assert len(rows) == 1
