"""The demo, as a newcomer runs it: real agent CLIs, from nothing to a trained policy, and nothing left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compose.demo.learning import GROUPS_PER_STEP, SAMPLES
from tests.e2e.stack import ROOT

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(600)]


def processes_of(state_dir: Path) -> list[str]:
    """Command lines of processes that belong to a state directory, by their arguments or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(state_dir).encode() in text:
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def run_demo(state_dir: Path, *options: str) -> str:
    """Run the command to its end; what it printed. The exit code is 0, and no process is left."""
    done = subprocess.run(
        [sys.executable, "-m", "compose.cli.main", "demo", "--state-dir", str(state_dir), *options],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "demo: ok" in done.stdout
    assert processes_of(state_dir) == []
    return done.stdout


def check_run(state_dir: Path) -> dict[str, Any]:
    """What holds for every run, however long: result.json, read anew."""
    result: dict[str, Any] = json.loads((state_dir / "result.json").read_text())
    steps = len(result["rewards"])
    assert (result["forks"], result["lost"]) == (0, 0)
    assert 0 < result["max_logprob_diff"] <= 1e-4
    versions = [0, *map(int, result["versions"])]
    assert len(versions) == steps + 1
    assert all(before < after for before, after in pairwise(versions))
    evaluated = sum(result[name]["sessions"] for name in ("trained", "held_out_before", "held_out_after"))
    assert result["trained"]["sessions"] == GROUPS_PER_STEP * SAMPLES * result["evaluation_steps"]
    assert result["sessions"] == evaluated + GROUPS_PER_STEP * SAMPLES * (steps - result["evaluation_steps"])
    learnt = result["rewards"][: result["evaluation_steps"]]
    assert sum(learnt) / len(learnt) == pytest.approx(result["baseline"])
    rows = pq.read_table(state_dir / "trajectories.parquet").to_pylist()
    assert len(rows) == result["sessions"]
    assert {row["harness"] for row in rows} == {"pi"}
    assert all(sum(row["loss_mask"]) > 0 for row in rows)
    return result


def test_the_demo_trains_through_the_real_pi_for_three_steps(tmp_path: Path) -> None:
    """Rising versions, no fork, no lost session, logprobs as the engine's, different rewards, with a fixed seed.

    The first step is of the evaluation's sessions.
    """
    state_dir = tmp_path / "demo"
    printed = run_demo(state_dir, "--seed", "0", "--steps", "3")
    result = check_run(state_dir)
    assert "noisy imitation" in printed
    assert (result["seed"], len(result["rewards"]), result["trained"]["sessions"]) == (0, 3, 24)
    assert 0.1 < result["baseline"] < 0.8
    assert all(0.1 < reward < 0.9 for reward in result["rewards"])


@pytest.mark.long
def test_the_demos_reward_rises_within_ten_steps(tmp_path: Path) -> None:
    """Ten bounded steps with a fixed seed: the last five are clearly above version 0 (offline, they are by 0.2 and more)."""
    state_dir = tmp_path / "demo"
    run_demo(state_dir, "--seed", "0", "--steps", "10")
    result = check_run(state_dir)
    last = result["rewards"][-5:]
    assert sum(last) / 5 - result["baseline"] == pytest.approx(result["gain"])
    assert result["gain"] > 0.1


@pytest.mark.long
def test_the_demos_reward_rises_by_a_quarter(tmp_path: Path) -> None:
    """The whole run: the gain is reached within 30 steps, and held-out combinations rise, too."""
    state_dir = tmp_path / "demo"
    run_demo(state_dir, "--seed", "1")
    result = check_run(state_dir)
    assert result["gain"] >= 0.25
    assert result["reached_after_s"] <= result["seconds"]
    assert result["held_out_after"]["reward"] > result["held_out_before"]["reward"]


def test_the_scripted_demo_runs_both_clis(tmp_path: Path) -> None:
    """A table for each CLI, eight traces with trained tokens, different rewards."""
    state_dir = tmp_path / "demo"
    assert "scripted" in run_demo(state_dir, "--scripted")
    rows = pq.read_table(state_dir / "trajectories.parquet").to_pylist()
    assert sorted(r["harness"] for r in rows) == ["claude_code"] * 4 + ["pi"] * 4
    for harness in ("pi", "claude_code"):
        mine = [r for r in rows if r["harness"] == harness]
        assert {r["status"] for r in mine} == {"completed"}
        assert sorted(r["reward"] for r in mine) == [0.0, 1.0, 1.0, 1.0]
        assert all(sum(r["loss_mask"]) > 50 for r in mine)
        assert {len(json.loads(r["turns"])) for r in mine} == {3, 5}
