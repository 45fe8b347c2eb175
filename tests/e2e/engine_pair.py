"""Two CPU engines with the scripted test policy, each in a process of its own: loading weights isn't safe beside another load."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.engine import POLICY, ROOT, START_WITHIN_S


@contextmanager
def running_pair(directory: Path, models: tuple[Path, Path]) -> Iterator[tuple[str, str]]:
    """The URLs of two engines that begin with these models; they are stopped at the end."""
    with ExitStack() as stack:
        started = [stack.enter_context(_running(directory / f"engine-{at}", model)) for at, model in enumerate(models)]
        first, second = [_url(process, base) for process, base in started]
        yield first, second


@contextmanager
def _running(base: Path, model: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    command = [sys.executable, "-m", "compose.cpu_engine", "--model", str(model), "--policy", POLICY]
    command += ["--port-file", str(base.with_suffix(".port")), "--incremental-streaming-output"]
    with base.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process, base
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _url(process: subprocess.Popen[bytes], base: Path) -> str:
    port, log = base.with_suffix(".port"), base.with_suffix(".log")
    deadline = time.monotonic() + START_WITHIN_S
    while not port.exists():
        assert process.poll() is None, f"the engine ended: {log.read_text(errors='replace')}"
        assert time.monotonic() < deadline, f"the engine isn't ready: {log.read_text(errors='replace')}"
        time.sleep(0.05)
    return f"http://127.0.0.1:{port.read_text().strip()}"
