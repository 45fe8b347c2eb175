"""The seam between a session and where it runs: start, exec, listen, upload, download, stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.task import RuntimeSpec

OptionsT = TypeVar("OptionsT", bound=BaseModel)
Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
"""Takes each piece of output as it comes; must not block."""


class RuntimeFault(Exception):  # noqa: N818  # a fault of the place, not of our code
    """The runtime itself failed (not the program in it): it could not start, a file could not be written."""

    is_retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one session may use; None means no limit of ours.

    `memory_bytes` bounds the private writable memory of each process, `pids` the processes of the user, `cpus` the cores that may
    be used, `file_bytes` the size of each file written.
    """

    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    file_bytes: int | None = None

    @classmethod
    def of(cls, spec: RuntimeSpec) -> Limits:
        """The limits that a task asks for, in the runtime's own units."""
        return cls(
            memory_bytes=None if spec.memory_mb is None else spec.memory_mb * 1024 * 1024,
            pids=spec.pids,
            cpus=spec.cpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A way out of a runtime: what its programs connect to, and what the worker accepts from.

    `sock` is bound, listening and non-blocking, made in the runtime's own network namespace where it has one; who asked for it
    closes it. `address` is `http://127.0.0.1:PORT`, as programs inside see it.
    """

    sock: socket.socket
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a program ended. `exit_code` is 128 + the signal's number when a signal ended it, as a shell would say.

    On a time-out `exit_code` is that of the killed program, `timed_out` is true, and the output until then is kept. `stdout` and
    `stderr` hold the first and last parts when there was more than the limit.
    """

    exit_code: int
    timed_out: bool
    stdout: bytes
    stderr: bytes
    duration_s: float

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself, with 0."""
        return self.exit_code == 0 and not self.timed_out

    def tail(self, limit: int = 400) -> str:
        """The end of what it said (standard error first choice), on one line, for error texts."""
        text = (self.stderr.strip() or self.stdout.strip()).decode("utf-8", "replace")
        return " | ".join(text.splitlines())[-limit:]


_IMAGES = {"docker": "NAME:TAG", "apptainer": "a .sif file, or docker://…"}


def image_of(spec: RuntimeSpec) -> str:
    """The image that a task's `runtime` names. Raises RuntimeFault, starting with the field's path, when it names none."""
    if not spec.image:
        raise RuntimeFault(f"runtime.image: runtime `{spec.kind}` needs an image ({_IMAGES[spec.kind]})")
    return spec.image


def parse_options(model: type[OptionsT], spec: RuntimeSpec) -> OptionsT:
    """What a task's `runtime.options` say, for one kind. Raises RuntimeFault that starts with the field's path."""
    try:
        return model.model_validate(dict(spec.options))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("runtime.options", *first["loc"])))
        known = ", ".join(model.model_fields)
        raise RuntimeFault(f"{field}: {first['msg']}; runtime `{spec.kind}` knows: {known}") from error


class Runtime(Protocol):
    """One session's place: a working directory, a home, and programs that run in it."""

    @property
    def workdir(self) -> str:
        """Where programs run, as they see it."""

    @property
    def home(self) -> str:
        """Their HOME, as they see it."""

    @property
    def is_trusted(self) -> bool:
        """True where nothing but good manners keeps a program inside (runtime `local` without a namespace)."""

    async def start(self) -> None:
        """Makes the place. Raises RuntimeFault."""

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
        """Runs a program to its end, or kills its whole process tree at the time-out and when cancelled.

        Nothing that it started is left when this returns. Raises RuntimeFault when it could not be started at all.
        """

    async def listen(self) -> Listener:
        """Opens a socket that the runtime's programs reach on their loopback, although they may reach nothing else.

        May be called more than once after `start`: each call opens another. Raises RuntimeFault.
        """

    async def upload(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Writes a file; a relative path counts from the working directory. Raises RuntimeFault."""

    async def download(self, path: str, limit_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Reads a file. Raises RuntimeFault when it is missing or larger than the limit."""

    async def stop(self) -> None:
        """Kills what still runs and removes the place; never raises, may be called twice."""


class RuntimeFactory(Protocol):
    """Makes runtimes (not yet started): of a session's attempt, or a fresh one beside it."""

    def __call__(self, spec: RuntimeSpec, name: str) -> Runtime:
        """`name` is unique on this worker. Raises RuntimeFault for a kind that this worker doesn't have."""
