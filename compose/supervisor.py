"""Keeps the parts of a local stack running: starts children, restarts the ones that die, stops them in order."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)

# A part that dies this often within this time is broken, not unlucky: restarting it again only hides that.
RESTARTS_MAX = 5
RESTARTS_WITHIN_S = 60.0
_PR_SET_PDEATHSIG = 1


class PartFailedError(RuntimeError):
    """A part of the stack didn't start, or died too often; the message names its log."""


@dataclass(frozen=True, slots=True)
class Part:
    """One child process: how to start it and the file that it writes once it is ready (JSON, deleted before a start)."""

    name: str
    argv: tuple[str, ...]
    ready_file: Path
    log_file: Path
    env: Mapping[str, str] = field(default_factory=dict)
    ready_within_s: float = 300.0
    stop_within_s: float = 20.0


def die_with_parent() -> None:
    """Ask the kernel to end this child when the supervisor dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """Runs parts as child processes. `on_change` is told whenever a pid changes."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._parts: dict[str, Part] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        self._on_change = on_change

    @property
    def pids(self) -> dict[str, int]:
        """The live parts and their pids."""
        return {name: p.pid for name, p in self._running.items() if p.returncode is None}

    async def start(self, part: Part) -> dict[str, object]:
        """Start a part, wait until it is ready and keep it alive; what its ready file says. PartFailedError if it isn't."""
        self._parts[part.name] = part
        await self._spawn(part)
        ready = await self._await_ready(part)
        self._watchers[part.name] = asyncio.create_task(self._watch(part), name=f"watch-{part.name}")
        return ready

    async def _spawn(self, part: Part) -> None:
        part.ready_file.unlink(missing_ok=True)
        part.log_file.parent.mkdir(parents=True, exist_ok=True)
        with part.log_file.open("ab") as output:
            self._running[part.name] = await asyncio.create_subprocess_exec(
                *part.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **part.env},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._on_change()

    async def _await_ready(self, part: Part) -> dict[str, object]:
        process = self._running[part.name]
        deadline = time.monotonic() + part.ready_within_s
        while not part.ready_file.exists():
            if process.returncode is not None:
                raise PartFailedError(
                    f"{part.name} ended with exit code {process.returncode} while starting. "
                    f"The end of {part.log_file}:\n{tail_of(part.log_file)}"
                )
            if time.monotonic() > deadline:
                raise PartFailedError(
                    f"{part.name} wasn't ready after {part.ready_within_s:.0f} s. The end of {part.log_file}:\n"
                    f"{tail_of(part.log_file)}"
                )
            await asyncio.sleep(0.05)
        loaded: dict[str, object] = json.loads(part.ready_file.read_text() or "{}")
        return loaded

    async def _watch(self, part: Part) -> None:
        deaths: deque[float] = deque(maxlen=RESTARTS_MAX)
        while True:
            code = await self._running[part.name].wait()
            if self._is_stopping:
                return
            now = time.monotonic()
            log.warning("part.died", part=part.name, exit_code=code, log=str(part.log_file))
            if len(deaths) == RESTARTS_MAX and now - deaths[0] < RESTARTS_WITHIN_S:
                self._fail(
                    PartFailedError(f"{part.name} died {RESTARTS_MAX + 1} times in a minute; see {part.log_file}")
                )
                return
            deaths.append(now)
            await asyncio.sleep(min(2.0, 0.2 * 2 ** (len(deaths) - 1)))
            await self._spawn(part)

    def _fail(self, error: PartFailedError) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; raises PartFailedError when a part is beyond restarting."""
        stopping = asyncio.create_task(stop.wait())
        try:
            waiting: set[asyncio.Future[Any]] = {stopping, self._failed}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
        finally:
            stopping.cancel()

    async def stop(self, order: Sequence[Collection[str]] = ()) -> None:
        """Stop the parts in `order` first, each group of names at once, then the rest; SIGKILL after each one's time."""
        self._is_stopping = True
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*self._watchers.values(), return_exceptions=True)
        for names in order:
            await asyncio.gather(*(self._end(name) for name in names if name in self._running))
        await asyncio.gather(*(self._end(name) for name in self._running))
        if not self._failed.done():
            self._failed.cancel()

    async def _end(self, name: str) -> None:
        process = self._running[name]
        if process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._parts[name].stop_within_s)
        except TimeoutError:
            log.warning("part.killed", part=name, reason="it didn't stop in time")
            process.kill()
            await process.wait()
        self._on_change()


def tail_of(path: Path, lines: int = 15) -> str:
    """The last lines of a log, for an error message; of a traceback only the exception, the frames stay in the log."""
    if not path.exists():
        return "(no log)"
    text = path.read_text(errors="replace").splitlines()
    starts = [i for i, line in enumerate(text) if line.startswith("Traceback (most recent call last)")]
    if starts:
        ends = (i for i in range(starts[-1] + 1, len(text)) if text[i] and not text[i].startswith(" "))
        text = text[next(ends, starts[-1]) :]
    return "\n".join(text[-lines:])


def python(*args: str) -> tuple[str, ...]:
    """The argv of one of our own commands in this interpreter."""
    return (sys.executable, "-m", "compose.cli.main", *args)
