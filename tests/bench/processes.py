"""Child processes of the bench: started, awaited, measured, and gone afterwards, whatever happens."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.bench.errors import BenchError

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 120.0
STOP_WITHIN_S = 15.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Child:
    """A running child."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    ready_file: Path

    async def ready(self, within_s: float = READY_WITHIN_S) -> dict[str, Any]:
        """What it wrote into its ready file; waits for it, so several children can start at once. Raises BenchError."""
        deadline = time.monotonic() + within_s
        while not self.ready_file.exists():
            self.require_alive()
            if time.monotonic() > deadline:
                raise BenchError(f"{self.name} wasn't ready after {within_s:.0f} s:\n{self.end_of_log()}")
            await asyncio.sleep(0.02)
        value: dict[str, Any] = json.loads(self.ready_file.read_text())
        return value

    async def url(self) -> str:
        """The URL that it serves, once it does."""
        return str((await self.ready())["url"])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far, in all its threads."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        """Its resident memory now."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def end_of_log(self, lines: int = 15) -> str:
        """The last lines that it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def require_alive(self) -> None:
        """Raise BenchError when it has ended."""
        if self.popen.poll() is not None:
            raise BenchError(f"{self.name} ended with {self.popen.returncode}:\n{self.end_of_log()}")


@contextmanager
def child(
    name: str,
    argv: Sequence[str],
    work_dir: Path,
    *,
    stop_within_s: float = STOP_WITHIN_S,
    env: Mapping[str, str] | None = None,
) -> Iterator[Child]:
    """Run `python <argv>` until the block ends, with `env` added to ours. `{ready}` in `argv` is the file that it writes (JSON) when it is ready."""
    work_dir.mkdir(parents=True, exist_ok=True)
    ready_file = work_dir / f"{name}.ready.json"
    ready_file.unlink(missing_ok=True)
    log = work_dir / f"{name}.log"
    command = [sys.executable, *(part.replace("{ready}", str(ready_file)) for part in argv)]
    with log.open("wb") as output:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **(env or {}), "PYTHONPATH": str(ROOT)},
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - one system call, which takes no lock
        )
    try:
        yield Child(name, popen, log, ready_file)
    finally:
        stop(popen, stop_within_s)


def stop(popen: subprocess.Popen[bytes], within_s: float = STOP_WITHIN_S) -> None:
    """End a child: politely, then the hard way."""
    if popen.poll() is None:
        popen.terminate()
        try:
            popen.wait(within_s)
        except subprocess.TimeoutExpired:
            popen.kill()
    popen.wait(STOP_WITHIN_S)


def say_ready(path: Path, facts: Mapping[str, Any]) -> None:
    """For the child's side: write the ready file whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(dict(facts)))
    partial.replace(path)


def raise_file_limit() -> None:
    """Allow as many open files as the machine lets us: thousands of connections are measured."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _end_with_parent() -> None:
    """In the child: end when the bench ends, even after kill -9."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
