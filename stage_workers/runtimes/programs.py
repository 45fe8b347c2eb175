"""Programs of a runtime that are processes of this machine: started one by one, watched, and ended with whatever they left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from stage_workers.output import HeadAndTail
from stage_workers.runtimes.base import ExecResult, OnOutput, Stream
from stage_workers.runtimes.processes import Family, exit_of, is_alive, kill_family

log = structlog.get_logger(__name__)

MARKER_VARIABLE = "POLYNYA_RUNTIME"
_READ_BYTES = 65_536
# After the tree is dead its pipes are closed; a reader that still waits has met a process that can't be killed.
_DRAIN_S = 5.0

Spawn = Callable[[str], Awaitable[asyncio.subprocess.Process]]
"""Starts a program in a session of its own, with pipes; it gets the value of the variable that it must be marked with."""


class Programs:
    """The programs of one runtime."""

    def __init__(self, mark: str, family: Family, *, grace_s: float) -> None:
        """`mark` begins the marks of all its programs; `family` is what else they have in common."""
        self._mark = mark
        self.family = replace(family, marker=f"{MARKER_VARIABLE}={mark}".encode())
        self._grace_s = grace_s
        self._count = 0
        self._running: dict[str, Family] = {}
        # Who kills what has no sign of another program must know that no other is just being started.
        self._starting = asyncio.Lock()

    async def run(
        self, spawn: Spawn, *, timeout_s: float, stdin: bytes | None, on_output: OnOutput | None, keep_bytes: int
    ) -> ExecResult:
        """Runs a program to its end, or kills it at the time-out and when cancelled; nothing that it started outlives the call."""
        started = time.monotonic()
        self._count += 1
        mark = f"{self._mark}/{self._count}"
        async with self._starting:
            process = await spawn(mark)
            marker = f"{MARKER_VARIABLE}={mark}".encode()
            self._running[mark] = Family(leaders=frozenset({process.pid}), marker=marker)
        kept = {"stdout": HeadAndTail(keep_bytes), "stderr": HeadAndTail(keep_bytes)}

        def take(stream: Stream, data: bytes) -> None:
            kept[stream].feed(data)
            if on_output is not None:
                on_output(stream, data)

        async with asyncio.TaskGroup() as group:
            readers = [
                group.create_task(_read(process.stdout, lambda data: take("stdout", data))),
                group.create_task(_read(process.stderr, lambda data: take("stderr", data))),
            ]
            if stdin is not None:
                group.create_task(_write(process.stdin, stdin))
            timed_out = False
            try:
                async with asyncio.timeout(timeout_s):
                    await exit_of(process.pid)
            except TimeoutError:
                timed_out = True
            finally:
                # A program that ended by itself gets no grace for what it left behind.
                grace_s = self._grace_s if is_alive(process.pid) else 0.0
                await asyncio.shield(asyncio.ensure_future(self._kill(mark, grace_s)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _DRAIN_S)
            _done, waiting = await asyncio.wait(readers, timeout=_DRAIN_S)
            for reader in waiting:
                reader.cancel()
        code = process.returncode
        return ExecResult(
            exit_code=-1 if code is None else 128 - code if code < 0 else code,
            timed_out=timed_out,
            stdout=kept["stdout"].value,
            stderr=kept["stderr"].value,
            duration_s=time.monotonic() - started,
        )

    async def end(self) -> None:
        """Kills every program of the runtime."""
        left = await kill_family(self.family)
        if left:
            log.error("process.unkillable", runtime=self._mark, left=left)

    async def _kill(self, mark: str, grace_s: float) -> None:
        """Ends a program and what it left; other programs of the runtime go on."""
        async with self._starting:
            own = self._running.pop(mark)
            # What cleared its environment and left its parents is found by where it is, unless signs say that it is another's.
            family = replace(self.family, leaders=own.leaders, marker=own.marker, spared=tuple(self._running.values()))
            left = await kill_family(family, grace_s=grace_s)
        if left:
            log.error("process.unkillable", runtime=self._mark, left=left)


async def _read(stream: asyncio.StreamReader | None, take: Callable[[bytes], None]) -> None:
    if stream is None:
        return
    while data := await stream.read(_READ_BYTES):
        take(data)


async def _write(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    # A program may end without reading its input; that is its business.
    with contextlib.suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    stream.close()
