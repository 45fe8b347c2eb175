"""Scripted CPU engines in processes of their own: importing torch for each stack would cost more than the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
POLICY = "scripted:tests.e2e.policy:reply"
START_WITHIN_S = 240.0


@dataclass(frozen=True, slots=True)
class _Engine:
    """An engine's process, and the file that it writes once it listens."""

    process: subprocess.Popen[bytes]
    log: Path
    ready: Path

    def said(self) -> str:
        """What it writes once it listens."""
        deadline = time.monotonic() + START_WITHIN_S
        while not self.ready.exists():
            text = self.log.read_text(errors="replace")
            assert self.process.poll() is None, f"the engine ended: {text}"
            assert time.monotonic() < deadline, f"the engine isn't ready: {text}"
            time.sleep(0.05)
        return self.ready.read_text()


@contextmanager
def _started(module: str, arguments: Sequence[str], *, log: Path, ready: Path, **env: str) -> Iterator[_Engine]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **env},
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
        try:
            yield _Engine(process, log, ready)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@contextmanager
def running_engine(state_dir: Path) -> Iterator[str]:
    """The URL of an engine as a stack has it, with the test policy; it is stopped at the end."""
    env = {"POLYNYA_STATE_DIR": str(state_dir), "POLYNYA_ENGINE": POLICY}
    log, ready = state_dir / "engine-output.log", state_dir / "run" / "engine.json"
    with _started("compose.cli.main", ["run", "engine"], log=log, ready=ready, **env) as engine:
        yield str(json.loads(engine.said())["url"])


@contextmanager
def running_pair(directory: Path, models: tuple[Path, Path]) -> Iterator[tuple[str, str]]:
    """The URLs of two engines that begin with these models, started at once: loading weights isn't safe beside another load."""
    with ExitStack() as stack:
        engines = []
        for at, model in enumerate(models):
            log, ready = (directory / f"engine-{at}{suffix}" for suffix in (".log", ".port"))
            arguments = ["--model", str(model), "--policy", POLICY, "--port-file", str(ready)]
            arguments += ["--incremental-streaming-output"]
            engines.append(stack.enter_context(_started("compose.cpu_engine", arguments, log=log, ready=ready)))
        first, second = (f"http://127.0.0.1:{engine.said().strip()}" for engine in engines)
        yield first, second
