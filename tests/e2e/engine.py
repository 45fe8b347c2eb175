"""One scripted CPU engine for all stacks of a test session: importing torch for each would cost more than the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
POLICY = "scripted:tests.e2e.policy:reply"
START_WITHIN_S = 240.0


@contextmanager
def running_engine(state_dir: Path) -> Iterator[str]:
    """The URL of an engine with the test policy; it is stopped at the end."""
    env = {**os.environ, "POLYNYA_STATE_DIR": str(state_dir), "POLYNYA_ENGINE": POLICY}
    log = (state_dir / "engine-output.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "compose.cli.main", "run", "engine"], env=env, cwd=ROOT, stdout=log, stderr=log
    )
    ready = state_dir / "run" / "engine.json"
    deadline = time.monotonic() + START_WITHIN_S
    try:
        while not ready.exists():
            said = (state_dir / "engine-output.log").read_text(errors="replace")
            assert process.poll() is None, f"the engine ended: {said}"
            assert time.monotonic() < deadline, f"the engine isn't ready: {said}"
            time.sleep(0.05)
        yield str(json.loads(ready.read_text())["url"])
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        log.close()
