"""The examples, run as their pages say: one stack with the scripted policy that comes with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.records import ScoredTrajectory, Status
from tests.e2e.stack import ROOT, Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(560)]

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack whose workers know the examples' harness."""
    env = {"POLYNYA_HARNESS_DIR": str(EXAMPLES / "custom_harness" / "definitions")}
    with Stack(tmp_path_factory.mktemp("examples"), engine_url, env=env).running() as stack:
        yield stack


def python(script: str, *args: str, **extra: str) -> subprocess.Popen[str]:
    """An example's own program, in the project's directory."""
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / script), *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str], within_s: float = 60.0) -> str:
    """What it printed; AssertionError when it failed."""
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err
    return out


def lines(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The JSON lines that it printed."""
    return [json.loads(line) for line in done(process).splitlines()]


async def solved(stack: Stack, file: Path, within_s: float = 300.0) -> dict[str, list[ScoredTrajectory]]:
    """Submit a task file, wait for its end; the results by task."""
    done = stack.cli("submit", str(file), "--wait", "--timeout-s", str(within_s), "--json", timeout_s=within_s + 60)
    sessions = {one["session_id"] for one in json.loads(done.stdout)}
    by_task: dict[str, list[ScoredTrajectory]] = {}
    for one in await stack.read("trajectory.scored"):
        if isinstance(one, ScoredTrajectory) and one.session_id in sessions:
            by_task.setdefault(one.task_id, []).append(one)
    return by_task


async def test_a_harness_of_ones_own_is_one_file(stack: Stack) -> None:
    """The definition is shown, its options are checked, and its agent solves the task through the whole line."""
    assert "max_turns" in stack.cli("harness", "show", "tiny_agent").stdout
    (results,) = (await solved(stack, EXAMPLES / "custom_harness" / "task.yaml")).values()
    assert [(r.status, r.reward) for r in results] == [(Status.COMPLETED, 1.0)] * 2
    for result in results:
        assert result.trajectory is not None
        assert (result.trajectory.counts.calls, result.trajectory.counts.traces) == (2, 1)


async def test_a_reward_for_every_call(stack: Stack) -> None:
    """Three calls, three traces: the one that repeats another is worth less, and the outcome is the mean."""
    (results,) = (await solved(stack, EXAMPLES / "custom_evaluator" / "task.yaml")).values()
    assert len(results) == 2
    for result in results:
        assert result.trajectory is not None
        assert [trace.reward for trace in result.trajectory.traces] == [1.0, -0.25, 1.0], result.error
        assert result.reward == pytest.approx(1.75 / 3)


async def test_issues_of_a_set_of_ones_own(stack: Stack, tmp_path: Path) -> None:
    """Rows are made, imported and solved through Pi in clones; one of two sessions mends the issue, and a fresh runtime sees it."""
    done(python("swe_gym/make_task_set.py", "--out", str(tmp_path)))
    (row, *others) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert len(others) == 4
    tasks = tmp_path / "tasks.jsonl"
    clone = (
        f"git clone -q --single-branch -b {{instance_id}} {tmp_path}/repos/{{repo}}.git . "
        "&& git checkout -q {base_commit} && git remote remove origin"
    )
    options = {
        "--format": "swegym",
        "--runtime": "local",
        "--samples": "2",
        "--repo-dir": ".",
        "--prepare": clone,
        "--test-command": f"{sys.executable} -m pytest -p no:cacheprovider -rA tests",
        "--limit": "1",
        "--out": str(tasks),
    }
    stack.cli("tasks", "import", str(tmp_path / "rows.jsonl"), *[word for pair in options.items() for word in pair])
    assert "abs(current - previous)" in row["patch"]
    assert "abs(current - previous)" not in tasks.read_text()
    ((name, results),) = (await solved(stack, tasks)).items()
    assert name == f"swegym-{row['instance_id']}"
    assert sorted(r.reward for r in results if r.reward is not None) == [0.0, 1.0], [r.error for r in results]
    for result in results:
        assert result.trajectory is not None
        assert result.trajectory.counts.traces == 1


async def test_two_trainers_with_their_own_filters_and_paces(stack: Stack, tmp_path: Path) -> None:
    """The fast one trains every group of the harness, the slow one its own task's; started again, each goes on behind that."""
    env = {"POLYNYA_TOPIC_PREFIX": stack.info.topic_prefix}
    where = (stack.info.bootstrap, "--state", str(tmp_path), "--start", str(time.time_ns() // 1_000_000))
    fast = (*where, "--id", "fast", "--harness", "tiny_agent")
    slow = (*where, "--id", "slow", "--task", "herons", "--seconds-a-step", "0.5", "--max-lag", "1")
    first = python("two_trainers/trainer.py", *fast, "--groups", "2", **env)
    beside = python("two_trainers/trainer.py", *slow, "--groups", "1", **env)
    try:
        assert sorted(await solved(stack, EXAMPLES / "two_trainers" / "tasks.yaml")) == ["gulls", "herons", "terns"]
        trained = [*lines(first), *lines(python("two_trainers/trainer.py", *fast, "--groups", "1", **env))]
        assert sorted(one["task"] for one in trained) == ["gulls", "herons", "terns"]
        assert [one["task"] for one in lines(beside)] == ["herons"]
        assert all(one["tokens"] > 0 for one in trained)
    finally:
        for process in (first, beside):
            if process.poll() is None:
                process.kill()
                process.communicate()
