"""Runtime `local`: a directory and a process group on this machine.

Each session has its own working directory, HOME and TMPDIR, an environment that starts empty, resource limits, and a marker by
which its processes are found again. Isolated, its programs live in user and network namespaces of their own: they reach the
listeners that were opened for them, and no other address. The machine's files they see in any case, as the worker's user does.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from stage_workers.output import HeadAndTail
from stage_workers.runtimes import launcher
from stage_workers.runtimes.base import ExecResult, Limits, Listener, OnOutput, RuntimeFault, Stream
from stage_workers.runtimes.network import NetworkSpace, listen_here
from stage_workers.runtimes.processes import Family, exit_of, is_alive, kill_family

log = structlog.get_logger(__name__)

MARKER_VARIABLE = "POLYNYA_RUNTIME"
# No file of a session may grow beyond this unless its limits say otherwise: a runaway log must not fill the disk.
DEFAULT_FILE_BYTES = 16 * 1024**3
# What a program may need of the worker's own environment. Everything else starts empty.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_READ_BYTES = 65_536
# After the tree is dead its pipes are closed; a reader that still waits has met a process that can't be killed.
_DRAIN_S = 5.0


class LocalRuntime:
    """A session's directory under `root`, and the programs that run there."""

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        owner: str,
        limits: Limits | None = None,
        grace_s: float = 2.0,
        isolate: bool = False,
    ) -> None:
        """`owner` is the marker's first part, shared by all runtimes of one worker incarnation; `name` is unique under it.

        `isolate` asks for a network of its own; where the machine allows none, a warning says so and the runtime stays trusted.
        """
        self._root = root.resolve() / name
        self._marker = f"{MARKER_VARIABLE}={owner}/{name}"
        self._limits = limits or Limits()
        self._grace_s = grace_s
        self._isolate = isolate
        self._space: NetworkSpace | None = None
        self._count = 0
        self._running: dict[str, Family] = {}
        # Who kills what has no sign of another program must know that no other is just being started.
        self._starting = asyncio.Lock()

    @property
    def is_trusted(self) -> bool:
        """Whether its programs reach whatever this machine reaches."""
        return self._space is None

    @property
    def workdir(self) -> str:
        """The working directory."""
        return str(self._root / "work")

    @property
    def home(self) -> str:
        """The HOME of its programs."""
        return str(self._root / "home")

    async def start(self) -> None:
        """Makes the directories, empty."""
        try:
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
            for name in ("work", "home", "tmp"):
                (self._root / name).mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise RuntimeFault(f"the session's directory {self._root} can't be made: {error}") from error
        if self._isolate and self._space is None:
            try:
                self._space = await NetworkSpace.new()
            except RuntimeFault as fault:
                log.warning("network.shared", runtime=str(self._root), why=str(fault))

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        path_dirs: Sequence[str] = (),
        stdin: bytes | None = None,
        on_output: OnOutput | None = None,
        keep_bytes: int = 65_536,
    ) -> ExecResult:
        """See `Runtime.exec`. Also ends programs that were left in the background: nothing outlives the call."""
        started = time.monotonic()
        self._count += 1
        marker = f"{self._marker}/{self._count}"
        async with self._starting:
            process = await self._spawn(
                argv, env or {}, cwd or self.workdir, path_dirs, marker, has_stdin=stdin is not None
            )
            self._running[marker] = Family(leaders=frozenset({process.pid}), marker=marker.encode())
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
                await asyncio.shield(asyncio.ensure_future(self._kill(marker, grace_s)))
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

    async def listen(self) -> Listener:
        """A socket on the loopback of its network: its own, or this machine's."""
        return listen_here() if self._space is None else await self._space.listen()

    async def upload(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Writes a file and its directories."""
        place = Path(self.workdir) / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            # Created with its mode, so that a secret is never readable for a moment; chmod for a file that was there.
            place.touch(mode)
            place.chmod(mode)
            place.write_bytes(content)
        except OSError as error:
            raise RuntimeFault(f"{place} can't be written: {error}") from error

    async def download(self, path: str, limit_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Reads a file."""
        place = Path(self.workdir) / path
        try:
            with place.open("rb") as file:
                data = file.read(limit_bytes + 1)
        except OSError as error:
            raise RuntimeFault(f"{place} can't be read: {error}") from error
        if len(data) > limit_bytes:
            raise RuntimeFault(f"{place} is larger than {limit_bytes} bytes")
        return data

    async def stop(self) -> None:
        """Kills what is left and removes the directories."""
        left = await kill_family(Family(marker=self._marker.encode(), directory=str(self._root)))
        if left:
            log.error("process.unkillable", runtime=str(self._root), left=left)
        if self._space is not None:
            self._space.close()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def _kill(self, marker: str, grace_s: float) -> None:
        """Ends a program and what it left; other programs of the runtime go on."""
        async with self._starting:
            own = self._running.pop(marker)
            # What cleared its environment and left its parents is found by the directory, unless another's signs say whose it is.
            family = replace(own, directory=str(self._root), spared=tuple(self._running.values()))
            left = await kill_family(family, grace_s=grace_s)
        if left:
            log.error("process.unkillable", runtime=str(self._root), left=left)

    async def _spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        path_dirs: Sequence[str],
        marker: str,
        *,
        has_stdin: bool,
    ) -> asyncio.subprocess.Process:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": self.home, "TMPDIR": str(self._root / "tmp"), "TERM": "dumb", "CI": "1"}
        environment.setdefault("LANG", "C.UTF-8")
        environment |= env
        own_path = environment.get("PATH") or os.defpath
        environment["PATH"] = os.pathsep.join((*path_dirs, own_path))
        name, _, value = marker.partition("=")
        environment[name] = value
        space = () if self._space is None else (self._space.user_fd, self._space.net_fd)
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                launcher.__file__,
                _limits_text(self._limits),
                str(os.getpid()),
                "+".join(map(str, space)),
                "--",
                *argv,
                cwd=cwd,
                env=environment,
                pass_fds=space,
                stdin=asyncio.subprocess.PIPE if has_stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise RuntimeFault(f"{argv[0]} can't be started in {cwd}: {error}") from error


def _limits_text(limits: Limits) -> str:
    parts = ["core=0", f"fsize={limits.file_bytes or DEFAULT_FILE_BYTES}"]
    if limits.memory_bytes is not None:
        parts.append(f"data={limits.memory_bytes}")
    if limits.pids is not None:
        parts.append(f"nproc={limits.pids}")
    if limits.cpus is not None:
        own = sorted(os.sched_getaffinity(0))
        parts.append("cores=" + "+".join(map(str, own[: max(1, math.ceil(limits.cpus))])))
    return ",".join(parts)


async def _read(stream: asyncio.StreamReader | None, take: object) -> None:
    if stream is None or not callable(take):
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
