"""The demo, as a newcomer runs it: the real Pi and Claude Code CLIs, from nothing to a Parquet file, and nothing left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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


def test_the_demo_runs_both_clis_and_leaves_a_file_and_no_process(tmp_path: Path) -> None:
    """Exit code 0, a table for each CLI, eight traces with trained tokens, different rewards, no process left."""
    state_dir = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "compose.cli.main", "demo", "--state-dir", str(state_dir)],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "scripted" in done.stdout
    rows = pq.read_table(state_dir / "trajectories.parquet").to_pylist()
    assert sorted(r["harness"] for r in rows) == ["claude_code"] * 4 + ["pi"] * 4
    for harness in ("pi", "claude_code"):
        mine = [r for r in rows if r["harness"] == harness]
        assert {r["status"] for r in mine} == {"completed"}
        assert sorted(r["reward"] for r in mine) == [0.0, 1.0, 1.0, 1.0]
        assert all(sum(r["loss_mask"]) > 50 for r in mine)
        assert {len(json.loads(r["turns"])) for r in mine} == {3, 5}
    assert "demo: ok" in done.stdout
    assert processes_of(state_dir) == []
