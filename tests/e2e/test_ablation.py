"""The ablation as `make ablation` runs it, bounded: real sessions of the tiny policy through Pi and of many calls, both builders, one live step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import ROOT
from tests.e2e.test_demo import processes_of

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


def test_the_ablation_measures_all_arms_and_leaves_no_process(tmp_path: Path) -> None:
    """Merging takes fewer updates of fewer tokens for the same trained ones; each arm has its live step; nothing is left running."""
    state_dir = tmp_path / "ablation"
    bounds = ("--groups", "4", "--live-steps", "1", "--simulated-steps", "1", "--sequences-per-update", "4")
    done = subprocess.run(
        [sys.executable, "-m", "compose.cli.main", "ablation", "--state-dir", str(state_dir), *bounds],
        capture_output=True,
        text=True,
        timeout=860,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    told = json.loads((state_dir / "result.json").read_text())
    for one in told["sets"].values():
        assert one["versions"] == ["0"]
        assert one["left_out"] == {}
        assert one["sessions"] == 16
        by_arm = {arm["arm"]: arm for arm in one["arms"]}
        assert len(by_arm) == 4
        assert len({arm["trained_tokens"] for arm in by_arm.values()}) == 1
        assert max(arm["max_logprob_diff"] for arm in by_arm.values()) < 1e-4
        assert one["calls"] > one["sessions"]
        flat, merged = by_arm["per_request, broadcast"], by_arm["prefix_merging, broadcast"]
        assert flat["computed_tokens"] > merged["computed_tokens"] or flat["traces"] == 0
    assert [len(live["rewards"]) for live in told["live"]] == [1] * 4
    assert len({live["rewards"][0] for live in told["live"]}) == 1  # the same weights, tasks and seeds
    assert [len(simulated["rewards"]) for simulated in told["simulated"]] == [1] * 4
    assert all(0 < live["engine_busy_share"] < 1 for live in told["live"])
    assert processes_of(state_dir) == []
