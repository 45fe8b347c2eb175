"""Programs in a container: started by exec, their streams read, killed with what they left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import structlog

from stage_workers.output import HeadAndTail
from stage_workers.runtimes.base import ExecResult, OnOutput, RuntimeFault, Stream
from stage_workers.runtimes.docker import sweep
from stage_workers.runtimes.docker.engine import Engine
from stage_workers.runtimes.processes import is_in_container, pid_space_of, process_table

log = structlog.get_logger(__name__)

_SWEEP_S = 30.0
# The engine closes the streams two seconds after a program's end, even where a child keeps them open.
_DRAIN_S = 10.0
_POLL_S = 2.0
_PAUSE_S = 0.05
_ROUNDS = 50


class Call(Protocol):
    """A call of the engine about one container. Raises RuntimeFault, also where the container is gone."""

    async def __call__(self, what: str, function: Any, *, deadline_s: float = ...) -> Any:
        """Calls `function(client, container)` in a thread; `what` begins the fault's text."""


class ContainerPrograms:
    """The programs of one container."""

    def __init__(self, engine: Engine, call: Call, *, user: str, grace_s: float) -> None:
        """`user` is whom they run as (empty: the image's own), `grace_s` the time from SIGTERM to SIGKILL."""
        self._engine = engine
        self._call = call
        self._user = user
        self._grace_s = grace_s
        self._execs: set[str] = set()
        # Who kills everything must know that nothing else has begun.
        self._starting = asyncio.Lock()

    async def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        place: str,
        *,
        timeout_s: float,
        stdin: bytes | None,
        on_output: OnOutput | None,
        keep_bytes: int,
    ) -> ExecResult:
        """Runs a program in the directory `place` to its end, or kills it; see `Runtime.exec`. Raises RuntimeFault."""
        started = time.monotonic()
        # The mark stands in the program's environment: what says that it never began must be another word.
        mark, word = uuid.uuid4().hex, uuid.uuid4().hex
        command = ["/bin/sh", "-c", sweep.LAUNCH, "sh", place, word, *argv]
        kept = {"stdout": HeadAndTail(keep_bytes), "stderr": HeadAndTail(keep_bytes)}

        def take(stream: Stream, data: bytes) -> None:
            kept[stream].feed(data)
            if on_output is not None:
                on_output(stream, data)

        exec_id = await self._create(command, {**environment, sweep.EXEC_VARIABLE: mark}, has_stdin=stdin is not None)
        async with self._starting:
            self._execs.add(mark)
        try:
            code, timed_out = await self._run(exec_id, mark, stdin, take, timeout_s)
        finally:
            self._execs.discard(mark)
        if kept["stderr"].value == word.encode():
            raise RuntimeFault(f"{argv[0]} can't be started in {place}: there is no such directory in the container")
        return ExecResult(
            exit_code=code,
            timed_out=timed_out,
            stdout=kept["stdout"].value,
            stderr=kept["stderr"].value,
            duration_s=time.monotonic() - started,
        )

    async def _create(self, command: Sequence[str], environment: Mapping[str, str], *, has_stdin: bool) -> str:
        made = await self._call(
            "the program can't be started",
            lambda client, it: client.exec_create(
                it, list(command), environment=dict(environment), stdin=has_stdin, user=self._user
            ),
        )
        return str(made["Id"])

    async def _run(
        self, exec_id: str, mark: str, stdin: bytes | None, take: OnOutput, timeout_s: float
    ) -> tuple[int, bool]:
        streams = await self._engine.streams()
        has_ended = timed_out = False
        reading: asyncio.Task[None] | None = None
        feeding: asyncio.Task[None] | None = None
        try:
            await streams.start(exec_id)
            reading = asyncio.create_task(streams.read(take))
            if stdin is not None:
                feeding = asyncio.create_task(streams.feed(stdin))
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ended(exec_id, reading)
                has_ended = True
            except TimeoutError:
                timed_out = True
            finally:
                await asyncio.shield(asyncio.ensure_future(self._sweep(exec_id, mark, is_running=not has_ended)))
            await asyncio.wait({reading}, timeout=_DRAIN_S)
            return await self._exit_code(exec_id), timed_out
        finally:
            for task in (reading, feeding):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*filter(None, (reading, feeding)), return_exceptions=True)
            await streams.close()

    async def _ended(self, exec_id: str, reading: asyncio.Task[None]) -> None:
        """Returns when the engine says that the program has ended.

        It is asked when the streams have (the program may have closed them itself), and now and then before (a child may hold them).
        """
        pause_s = _PAUSE_S
        while True:
            await asyncio.wait({reading}, timeout=_POLL_S)
            if not (await self._inspect(exec_id))["Running"]:
                return
            if reading.done():
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_S)

    async def _inspect(self, exec_id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._call(
            "the program can't be looked at", lambda client, _it: client.exec_inspect(exec_id)
        )
        return found

    async def _exit_code(self, exec_id: str) -> int:
        """The program's exit code; it may take the engine a moment to know it."""
        code = (await self._settled(exec_id, _DRAIN_S))["ExitCode"]
        return -1 if code is None else int(code)

    async def _settled(self, exec_id: str, patience_s: float) -> dict[str, Any]:
        """What the engine says of a program once it has ended, or when patience does."""
        end = time.monotonic() + patience_s
        while True:
            found = await self._inspect(exec_id)
            if not found["Running"] or time.monotonic() > end:
                return found
            await asyncio.sleep(_PAUSE_S)

    async def _sweep(self, exec_id: str, mark: str, *, is_running: bool) -> None:
        """Kills what a program was and left; the whole container where that can't be done."""
        try:
            if is_running:
                await self._signal("TERM", mark)
                await self._settled(exec_id, self._grace_s)
            await self._signal("KILL", mark)
        except RuntimeFault as fault:
            # Stopped meanwhile, or an engine that doesn't do what it is told: all or nothing.
            log.info("container.unswept", why=str(fault))
            with contextlib.suppress(RuntimeFault):
                await self._call("the container can't be killed", lambda client, it: client.kill(it))

    async def _signal(self, name: str, mark: str) -> None:
        # With another program beside it only what bears the mark is ours; alone, everything is.
        async with self._starting:
            script = sweep.KILL_MARKED if self._execs - {mark} else sweep.KILL_ALL
            made = await self._create(["/bin/sh", "-c", script, "sh", name, mark], {}, has_stdin=False)
            await self._call(
                "what a program left can't be killed", lambda client, _it: client.exec_start(made), deadline_s=_SWEEP_S
            )
            # 1: there was nobody to signal. Anything else: not even this could be started, as at the limit of processes.
            if (await self._inspect(made))["ExitCode"] not in {0, 1}:
                await self._call("what a program left can't be killed", kill_from_here)


def kill_from_here(client: Any, container: str) -> None:
    """Kills every process of a container but its first, as processes of this machine. Blocks.

    Raises:
        RuntimeFault: they can't be seen or may not be killed from here.
    """
    first = int(client.inspect_container(container)["State"]["Pid"])
    if not is_in_container(first, container):
        raise RuntimeFault("the container's processes aren't in sight")
    for _round in range(_ROUNDS):
        space = pid_space_of(first)
        found = [pid for pid in process_table() if pid != first and space and pid_space_of(pid) == space]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                raise RuntimeFault("the container's processes may not be killed from here") from error
        if len(found) == 1:
            # The first one's own child, which it starts again.
            return
        time.sleep(_PAUSE_S)
