"""Runtime `apptainer`: a rootless instance; programs join it by `apptainer exec`, its network is what was opened for it.

The working directory, HOME and /tmp are directories of this machine, bound into it; the rest of the image is read-only or, where
the task asks for it, covered by a writable layer. Files go in and out through programs inside, so that no link that a program made
there leads the worker astray.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field

from schemas.task import RuntimeSpec
from stage_workers.runtimes.base import ExecResult, Listener, OnOutput, RuntimeFault, image_of, parse_options
from stage_workers.runtimes.instances import PROGRAM, call_apptainer, instance_name, spawn_apptainer
from stage_workers.runtimes.network import NetworkSpace
from stage_workers.runtimes.processes import Family, pid_space_of, process_table
from stage_workers.runtimes.programs import MARKER_VARIABLE, Programs
from stage_workers.runtimes.sandbox import Sandbox

log = structlog.get_logger(__name__)

_WORKDIR = "/work"
_FILE_S = 60.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Becomes the program in a directory; where there is no such directory it says the word $2, and nothing else.
_LAUNCH = """
cd -- "$1" 2>/dev/null || { printf %s "$2" >&2; exit 126; }
export HOME="$3" PATH="${4:+$4:}$PATH"
ulimit -c 0
shift 4
exec "$@"
"""
_UPLOAD = 'set -e; mkdir -p "$(dirname "$1")"; umask 077; rm -f "$1"; cat >"$1"; chmod "$2" "$1"'
_DOWNLOAD = '[ -f "$1" ] || { echo "no such file" >&2; exit 3; }; exec head -c "$2" "$1"'


class ApptainerOptions(BaseModel):
    """What `runtime.options` may say for `kind: apptainer`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workdir: str = Field(
        default=_WORKDIR, pattern="^/", description="where programs run; another than the default is the image's own"
    )
    home: str = Field(default="/home/polynya", pattern="^/", description="HOME of programs")
    writable: Literal["no", "tmpfs", "overlay"] = Field(
        default="tmpfs",
        description="what changes to the image are kept in: nothing, memory, a directory beside the session's",
    )
    nvidia: bool = Field(default=False, description="give it the machine's NVIDIA devices")


class ApptainerRuntime(Sandbox):
    """A session's instance."""

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        owner: str,
        spec: RuntimeSpec,
        binds: Sequence[tuple[Path, str]] = (),
        grace_s: float = 2.0,
    ) -> None:
        """`root` is where its directories go; `binds` are (place here, place inside), read-only.

        Raises:
            RuntimeFault: the task's `runtime` doesn't fit.
        """
        self._root = root.resolve() / name
        self._spec = spec
        self._image = image_of(spec)
        self._options = parse_options(ApptainerOptions, spec)
        super().__init__(self._options)
        self._binds = tuple(binds)
        self._mark = f"{owner}/{name}"
        self._instance = instance_name(owner, name)
        self._pid = 0
        self._programs = Programs(self._mark, Family(), grace_s=grace_s)

    async def start(self) -> None:
        """Starts the instance."""
        if "://" not in self._image and not Path(self._image).exists():
            raise RuntimeFault(
                f"the image {self._image} isn't on this machine; make it: apptainer pull {shlex.quote(self._image)} docker://…"
            )
        try:
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
            for name in ("work", "home", "tmp", "overlay"):
                (self._root / name).mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise RuntimeFault(f"the session's directory {self._root} can't be made: {error}") from error
        try:
            await self._apptainer("instance", "start", *self.start_flags(), self._image, self._instance)
            listed = orjson.loads(await self._apptainer("instance", "list", "--json", self._instance))
            self._pid = int(listed["instances"][0]["pid"])
        except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
            await self.stop()
            raise RuntimeFault("apptainer started the instance, but doesn't list it") from error
        except BaseException:  # also when cancelled: an instance that didn't become a runtime is nobody's
            await self.stop()
            raise
        space = pid_space_of(self._pid)
        keepers = await asyncio.to_thread(lambda: {pid for pid in process_table() if pid_space_of(pid) == space})
        self._programs.family = Family(
            marker=self._programs.family.marker, pid_space=space, keepers=frozenset(keepers | {self._pid})
        )

    def start_flags(self) -> list[str]:
        """How the instance is made: nothing of this machine but what is bound, no network unless the task asks for one."""
        spec, options = self._spec, self._options
        flags = ["--containall", "--no-privs", "--home", f"{self._root}/home:{options.home}"]
        binds = [f"{self._root}/tmp:/tmp", *(f"{source}:{target}:ro" for source, target in self._binds)]  # noqa: S108  # inside
        if options.workdir == _WORKDIR:
            binds.append(f"{self._root}/work:{_WORKDIR}")
        for bind in binds:
            flags += ["--bind", bind]
        if spec.network == "model_only":
            flags += ["--net", "--network", "none"]
        if options.writable == "tmpfs":
            flags.append("--writable-tmpfs")
        elif options.writable == "overlay":
            flags += ["--overlay", f"{self._root}/overlay"]
        if spec.memory_mb is not None:
            flags += ["--memory", f"{spec.memory_mb}M", "--memory-swap", f"{spec.memory_mb}M"]
        if spec.cpus is not None:
            flags += ["--cpus", f"{spec.cpus:g}"]
        if spec.pids is not None:
            flags += ["--pids-limit", str(spec.pids)]
        if options.nvidia:
            flags.append("--nv")
        return flags

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
        """See `Runtime.exec`."""
        if not self._pid:
            raise RuntimeFault("the instance isn't there (not started yet, or stopped)")
        given = {"LANG": "C.UTF-8", "TERM": "dumb", "CI": "1", **(env or {})}
        first = ":".join((*path_dirs, *filter(None, [given.pop("PATH", "")])))
        if bad := [name for name in given if not _VARIABLE.fullmatch(name)]:
            raise RuntimeFault(f"{bad[0]!r} is no name that an environment variable can have in apptainer")
        place = self.place(cwd)
        # Nothing that a program inside could know and say.
        word = uuid.uuid4().hex
        home = given.pop("HOME", self.home)
        inside = ("/bin/sh", "-c", _LAUNCH, "sh", place, word, home, first, *argv)
        result = await self._programs.run(
            lambda mark: spawn_apptainer(
                ("exec", "--cleanenv", "--pwd", "/", f"instance://{self._instance}", *inside),
                # Not as arguments, which every user of this machine could read.
                {f"APPTAINERENV_{name}": value for name, value in {**given, MARKER_VARIABLE: mark}.items()},
                mark,
                has_stdin=stdin is not None,
            ),
            timeout_s=timeout_s,
            stdin=stdin,
            on_output=on_output,
            keep_bytes=keep_bytes,
        )
        if result.stderr == word.encode():
            raise RuntimeFault(f"{argv[0]} can't be started in {place}: there is no such directory in the instance")
        return result

    async def listen(self) -> Listener:
        """A socket on the loopback of the instance's network."""
        if not self._pid:
            raise RuntimeFault("the instance isn't there (not started yet, or stopped): nothing can listen in it")
        space = NetworkSpace.of(self._pid)
        try:
            return await space.listen()
        finally:
            space.close()

    async def upload(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Writes a file and its directories."""
        place = self.place(path)
        argv = ["/bin/sh", "-c", _UPLOAD, "sh", place, f"{mode:o}"]
        result = await self.exec(argv, timeout_s=_FILE_S, cwd="/", stdin=content)
        if not result.succeeded:
            raise RuntimeFault(f"{place} can't be written: {result.tail()}")

    async def download(self, path: str, limit_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Reads a file."""
        place = self.place(path)
        argv = ["/bin/sh", "-c", _DOWNLOAD, "sh", place, str(limit_bytes + 1)]
        data = bytearray()

        def take(stream: str, piece: bytes) -> None:
            if stream == "stdout":
                data.extend(piece)

        result = await self.exec(argv, timeout_s=_FILE_S, cwd="/", on_output=take, keep_bytes=1024)
        if not result.succeeded:
            raise RuntimeFault(f"{place} can't be read: {result.stderr.decode('utf-8', 'replace').strip()}")
        if len(data) > limit_bytes:
            raise RuntimeFault(f"{place} is larger than {limit_bytes} bytes")
        return bytes(data)

    async def stop(self) -> None:
        """Ends the instance with everything in it, and removes its directories."""
        self._pid = 0
        if self._root.exists():
            try:
                if shutil.which(PROGRAM) is not None:  # without it none was ever started
                    await self._apptainer("instance", "stop", "--signal", "KILL", self._instance)
            except RuntimeFault as fault:
                log.info("instance.unstopped", instance=self._instance, why=str(fault))
            await self._programs.end()
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def _apptainer(self, *argv: str) -> bytes:
        return await call_apptainer(*argv, mark=self._mark)
