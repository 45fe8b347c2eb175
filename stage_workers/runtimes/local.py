"""Runtime `local`: a directory and a process group on this machine.

Each session has its own working directory, HOME and TMPDIR, an environment that starts empty, resource limits, and a marker by
which its processes are found again. Isolated, its programs live in user and network namespaces of their own: they reach the
listeners that were opened for them, and no other address. The machine's files they see in any case, as the worker's user does.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import structlog

from stage_workers.runtimes import launcher
from stage_workers.runtimes.base import ExecResult, Limits, Listener, OnOutput, RuntimeFault
from stage_workers.runtimes.helper import NamespaceHelper
from stage_workers.runtimes.network import NetworkSpace, listen_here
from stage_workers.runtimes.processes import Family
from stage_workers.runtimes.programs import MARKER_VARIABLE, Programs

log = structlog.get_logger(__name__)

# No file of a session may grow beyond this unless its limits say otherwise: a runaway log must not fill the disk.
DEFAULT_FILE_BYTES = 16 * 1024**3
# A program may have put a pipe where a file should be: whoever opens it must not wait for its other end, with the whole worker.
_PLAIN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NODE_CACHE = "node-compile-cache"
# What a program may need of the worker's own environment. Everything else starts empty.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


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
        helper: NamespaceHelper | None = None,
        compile_cache: Path | None = None,
    ) -> None:
        """`owner` is the marker's first part, shared by all runtimes of one worker incarnation; `name` is unique under it.

        `isolate` asks for a network of its own, which `helper` makes; where the machine allows none, a warning says so and the
        runtime stays trusted. `compile_cache` is where node programs that ask for a cache of their compiled modules share one.
        """
        self._root = root.resolve() / name
        self._limits = limits or Limits()
        self._isolate = isolate
        self._helper = helper
        self._compile_cache = compile_cache
        self._space: NetworkSpace | None = None
        self._programs = Programs(f"{owner}/{name}", Family(directory=str(self._root)), grace_s=grace_s)

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
            if self._compile_cache is not None:
                # Its default place is in the temporary directory, which is the session's own: each would compile everything again.
                (self._root / "tmp" / _NODE_CACHE).symlink_to(self._compile_cache, target_is_directory=True)
        except OSError as error:
            raise RuntimeFault(f"the session's directory {self._root} can't be made: {error}") from error
        if self._isolate and self._space is None:
            try:
                self._space = await NetworkSpace.new(self._helper)
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
        return await self._programs.run(
            lambda mark: self._spawn(
                argv, env or {}, cwd or self.workdir, path_dirs, mark, has_stdin=stdin is not None
            ),
            timeout_s=timeout_s,
            stdin=stdin,
            on_output=on_output,
            keep_bytes=keep_bytes,
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
            with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | _PLAIN, mode), "wb") as file:
                _check_plain(file)
                os.fchmod(file.fileno(), mode)
                file.truncate()
                file.write(content)
        except (OSError, ValueError) as error:
            raise RuntimeFault(f"{place} can't be written: {error}") from error

    async def download(self, path: str, limit_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Reads a file."""
        place = Path(self.workdir) / path
        try:
            with os.fdopen(os.open(place, os.O_RDONLY | _PLAIN), "rb") as file:
                _check_plain(file)
                data = file.read(limit_bytes + 1)
        except (OSError, ValueError) as error:
            raise RuntimeFault(f"{place} can't be read: {error}") from error
        if len(data) > limit_bytes:
            raise RuntimeFault(f"{place} is larger than {limit_bytes} bytes")
        return data

    async def stop(self) -> None:
        """Kills what is left and removes the directories."""
        await self._programs.end()
        if self._space is not None:
            self._space.close()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def _spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        path_dirs: Sequence[str],
        mark: str,
        *,
        has_stdin: bool,
    ) -> asyncio.subprocess.Process:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"HOME": self.home, "TMPDIR": str(self._root / "tmp"), "TERM": "dumb", "CI": "1"}
        environment.setdefault("LANG", "C.UTF-8")
        environment |= env
        own_path = environment.get("PATH") or os.defpath
        environment["PATH"] = os.pathsep.join((*path_dirs, own_path))
        environment[MARKER_VARIABLE] = mark
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


def _check_plain(file: BinaryIO) -> None:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


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
