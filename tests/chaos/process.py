"""One part of a fleet as a process: started, hit, brought back; its deaths are noted with who is to blame."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compose.supervisor import die_with_parent, tail_of
from tests.chaos.plan import How

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 240.0
STOP_WITHIN_S = 60.0
OWN_DEATH_PAUSE_S = 1.0


class PartDiedError(AssertionError):
    """A part didn't come up; the message holds the end of its log."""


@dataclass(slots=True)
class PartProcess:
    """A part in a process. After `start` it is kept alive until `stop`; `deaths` are those that nobody caused."""

    name: str
    part: str
    argv: tuple[str, ...]
    ready_file: Path
    log_file: Path
    env: Mapping[str, str]
    restarts: int = 0
    deaths: list[str] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None
    _keeper: asyncio.Task[None] | None = None
    _back_at: float = 0.0
    _is_stopping: bool = False

    @property
    def pid(self) -> int | None:
        """The pid while it lives."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> dict[str, Any]:
        """Start it and wait until it is ready; what its ready file says."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep-{self.name}")
        return await self.ready()

    async def ready(self) -> dict[str, Any]:
        """Wait until it says that it is ready; PartDiedError when it doesn't come up."""
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            with contextlib.suppress(OSError, ValueError):
                said: dict[str, Any] = json.loads(self.ready_file.read_text())
                if said.get("pid", self.pid) == self.pid is not None:
                    return said
            if time.monotonic() > deadline:
                raise PartDiedError(f"{self.name} isn't ready after {READY_WITHIN_S:.0f} s:\n{tail_of(self.log_file)}")
            await asyncio.sleep(0.05)

    async def hit(self, how: How, back_after_s: float) -> bool:
        """Kill it, to be started again by its keeper, or freeze it and thaw it again; False when it was down anyway."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        if how is How.KILL:
            self._back_at = time.monotonic() + back_after_s
            process.kill()
            return True
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(back_after_s)
        finally:
            self.thaw(process)
        return True

    def thaw(self, process: asyncio.subprocess.Process | None = None) -> None:
        """Let it go on; harmless when it isn't frozen or is gone."""
        process = process or self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Stop it in an orderly way, and the hard way when that takes too long (which counts as a death of its own)."""
        self._is_stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.thaw()
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            self.deaths.append(f"{self.name} didn't stop within {STOP_WITHIN_S:.0f} s of SIGTERM")
            process.kill()
            await process.wait()

    async def _spawn(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.env},
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    async def _keep(self) -> None:
        while True:
            process = self._process
            assert process is not None
            code = await process.wait()
            if self._is_stopping:
                return
            pause_s = self._back_at - time.monotonic()
            if not self._back_at:
                self.deaths.append(f"{self.name} ended by itself with exit code {code}; see {self.log_file}")
                pause_s = OWN_DEATH_PAUSE_S
            self._back_at = 0.0
            await asyncio.sleep(max(0.0, pause_s))
            self.restarts += 1
            await self._spawn()
