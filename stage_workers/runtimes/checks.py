"""What every runtime must do, as checks that run against a real one: by the tests here, and by `polynya doctor --runtime`.

A check raises `CheckFailed` where the runtime doesn't do it, and `NotHere` where this machine can't have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from schemas.task import RuntimeSpec
from stage_workers.runtimes import probes
from stage_workers.runtimes.base import ExecResult, Runtime, RuntimeFactory, RuntimeFault

_STEP_S = 60.0


class CheckFailed(Exception):  # noqa: N818  # a verdict, not an error of ours
    """The runtime doesn't do what it must."""


class NotHere(Exception):  # noqa: N818  # a verdict, not an error of ours
    """This machine can't have it; the text says why."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """Where checks get their runtimes: `spec` is what they ask for beside their own limits, `lacks` which checks are no use and why."""

    make: RuntimeFactory
    spec: RuntimeSpec
    lacks: Mapping[str, str] = field(default_factory=dict)
    _count: int = 0

    @asynccontextmanager
    async def runtime(self, **fields: object) -> AsyncIterator[Runtime]:
        """A started runtime, stopped at the end; `fields` change the spec."""
        self._count += 1
        place = self.make(self.spec.model_copy(update=fields), f"check.{os.getpid()}.{self._count}")
        try:
            await place.start()
            yield place
        finally:
            await place.stop()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a runtime must do: its name, what it means, and how it is found out."""

    name: str
    meaning: str
    do: Callable[[Bench], Awaitable[None]]

    async def run(self, bench: Bench) -> None:
        """Finds it out. Raises CheckFailed, NotHere, or RuntimeFault where the runtime itself fails."""
        if self.name in bench.lacks:
            raise NotHere(bench.lacks[self.name])
        await self.do(bench)


CHECKS: list[Check] = []


def _check(function: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
    CHECKS.append(Check(function.__name__, (function.__doc__ or "").strip(), function))
    return function


def _same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise CheckFailed(f"{what}: {found!r} instead of {expected!r}")


def _holds(condition: object, what: str) -> None:
    if not condition:
        raise CheckFailed(what)


async def _sh(place: Runtime, script: str, *arguments: str, timeout_s: float = _STEP_S) -> ExecResult:
    return await place.exec(["/bin/sh", "-c", script, "sh", *arguments], timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def _fault(text: str, what: str) -> AsyncIterator[None]:
    try:
        yield
    except RuntimeFault as fault:
        _holds(text in str(fault), f"{what}: the fault doesn't say {text!r}: {fault}")
    else:
        raise CheckFailed(f"{what}: no fault")


@_check
async def output_and_exit_code(bench: Bench) -> None:
    """A program's two streams come back apart, with its exit code; one that a signal ended has 128 and its number."""
    async with bench.runtime() as place:
        result = await _sh(place, "echo out; echo err >&2; exit 3")
        _same(
            (result.exit_code, result.stdout, result.stderr, result.timed_out), (3, b"out\n", b"err\n", False), "ended"
        )
        _same((await _sh(place, "kill -KILL $$")).exit_code, 137, "exit code after SIGKILL")


@_check
async def environment_is_the_sessions(bench: Bench) -> None:
    """A program sees the given variables and a HOME of its own, none of the worker's, and the given directories in its PATH."""
    os.environ["POLYNYA_CHECK"] = "the worker's own"
    try:
        async with bench.runtime() as place:
            await place.upload("tools/mine", b"#!/bin/sh\necho found\n", 0o755)
            argv = ["/bin/sh", "-c", 'mine; echo "$GIVEN" "$HOME"; env']
            tools = (f"{place.workdir}/tools",)
            result = await place.exec(argv, timeout_s=_STEP_S, env={"GIVEN": "a b'c"}, path_dirs=tools)
            _same(result.stdout.splitlines()[:2], [b"found", f"a b'c {place.home}".encode()], "environment")
            _holds(b"POLYNYA_CHECK" not in result.stdout, "a variable of the worker's reached the program")
            _holds((await _sh(place, 'echo x >"$HOME/file" && cat "$HOME/file"')).succeeded, "HOME can't be written")
    finally:
        del os.environ["POLYNYA_CHECK"]


@_check
async def directories(bench: Bench) -> None:
    """Programs run in the working directory or where they are told; a directory that isn't there is a fault."""
    async with bench.runtime() as place:
        _same((await _sh(place, "pwd -P")).stdout.decode().strip(), place.workdir, "working directory")
        await place.upload("sub/file", b"")
        result = await place.exec(["ls"], timeout_s=_STEP_S, cwd=f"{place.workdir}/sub")
        _same(result.stdout, b"file\n", "files where it was told to run")
        async with _fault("nowhere", "a program in a directory that isn't there"):
            await place.exec(["true"], timeout_s=_STEP_S, cwd=f"{place.workdir}/nowhere")


@_check
async def standard_input(bench: Bench) -> None:
    """Standard input is what was given, then ends; it is empty otherwise."""
    async with bench.runtime() as place:
        _same((await place.exec(["cat"], timeout_s=_STEP_S, stdin=b"words")).stdout, b"words", "input")
        _same((await place.exec(["cat"], timeout_s=_STEP_S)).stdout, b"", "no input")
        much = await place.exec(["wc", "-c"], timeout_s=_STEP_S, stdin=b"x" * 1_000_000)
        _same(much.stdout.strip(), b"1000000", "bytes of a large input")
        _holds((await place.exec(["true"], timeout_s=_STEP_S, stdin=b"x" * 1_000_000)).succeeded, "input left unread")


@_check
async def output_streams(bench: Bench) -> None:
    """Output is handed on as it comes, and files go in while a program runs."""
    async with bench.runtime() as place:
        seen: asyncio.Queue[bytes] = asyncio.Queue()
        script = "echo first; while [ ! -e go ]; do sleep 0.1; done; echo second"
        running = asyncio.create_task(
            place.exec(
                ["/bin/sh", "-c", script], timeout_s=_STEP_S, on_output=lambda _stream, data: seen.put_nowait(data)
            )
        )
        try:
            async with asyncio.timeout(_STEP_S):
                _same(await seen.get(), b"first\n", "first piece of output")
            await place.upload("go", b"")
            _same((await running).stdout, b"first\nsecond\n", "output")
        finally:
            running.cancel()


@_check
async def output_is_bounded(bench: Bench) -> None:
    """Of much output the first and the last part are kept, and all of it is handed on."""
    async with bench.runtime() as place:
        sizes: list[int] = []
        result = await place.exec(
            ["seq", "1", "300000"],
            timeout_s=_STEP_S,
            keep_bytes=4000,
            on_output=lambda _stream, data: sizes.append(len(data)),
        )
        _same(sum(sizes), sum(len(str(number)) + 1 for number in range(1, 300_001)), "bytes handed on")
        _holds(result.stdout.startswith(b"1\n2\n") and result.stdout.endswith(b"\n300000\n"), "head or tail is missing")
        _holds(len(result.stdout) < 4200, f"{len(result.stdout)} bytes were kept instead of 4000")


@_check
async def time_out_kills(bench: Bench) -> None:
    """At the time-out a program dies although it ignores SIGTERM, with its children; its output until then is kept."""
    async with bench.runtime() as place:
        started = time.monotonic()
        script = "trap '' TERM; sleep 300 & echo $! >pid; echo before; wait; sleep 300; sleep 300"
        result = await _sh(place, script, timeout_s=1.5)
        _same((result.timed_out, result.stdout), (True, b"before\n"), "timed out")
        # What launched it may have died of SIGTERM before.
        _holds(result.exit_code in {137, 143}, f"exit code of what was killed: {result.exit_code}")
        _holds(time.monotonic() - started < 40, "it took too long to kill")
        await _gone(place, "pid")


@_check
async def nothing_is_left_behind(bench: Bench) -> None:
    """A child that left its session, cleared its environment and outlived its parent is dead when the program's end is told."""
    async with bench.runtime() as place:
        script = (
            "setsid env -i /bin/sh -c 'echo $$ >pid; exec sleep 300' >/dev/null 2>&1 &"
            " while [ ! -s pid ]; do sleep 0.1; done; echo up"
        )
        result = await _sh(place, script)
        _same((result.exit_code, result.stdout), (0, b"up\n"), "ended")
        await _gone(place, "pid")


@_check
async def cancelling_kills(bench: Bench) -> None:
    """A cancelled program is dead, with its children, when the cancellation is through; the runtime goes on."""
    async with bench.runtime() as place:
        up = asyncio.Event()
        script = "sleep 300 & echo $! >pid; echo up; wait"
        task = asyncio.create_task(
            place.exec(["/bin/sh", "-c", script], timeout_s=_STEP_S, on_output=lambda _stream, _data: up.set())
        )
        async with asyncio.timeout(_STEP_S):
            await up.wait()
        task.cancel()
        await asyncio.wait({task})
        _holds(task.cancelled(), "the cancellation was swallowed")
        await _gone(place, "pid")


@_check
async def programs_at_the_same_time(bench: Bench) -> None:
    """Programs that run at the same time don't end one another; each has its own output."""
    async with bench.runtime() as place:
        long = asyncio.create_task(_sh(place, "while [ ! -e go ]; do sleep 0.1; done; echo long"))
        short = await asyncio.gather(*(_sh(place, "echo $1", str(number)) for number in range(3)))
        _same([result.stdout for result in short], [b"0\n", b"1\n", b"2\n"], "outputs of the short ones")
        _holds((await _sh(place, "exit 5", timeout_s=_STEP_S)).exit_code == 5, "exit code beside another program")
        await place.upload("go", b"")
        result = await long
        _same((result.exit_code, result.stdout), (0, b"long\n"), "the long one")


@_check
async def missing_program(bench: Bench) -> None:
    """A program that isn't there ends as in a shell, with 127 and a word on standard error."""
    async with bench.runtime() as place:
        result = await place.exec(["no-such-program-anywhere"], timeout_s=_STEP_S)
        _same(result.exit_code, 127, "exit code")
        _holds(b"no-such-program-anywhere" in result.stderr, f"standard error doesn't name it: {result.stderr!r}")


@_check
async def files_in_and_out(bench: Bench) -> None:
    """Files go in with their mode and directories and come out the same; what isn't there or too large is a fault."""
    async with bench.runtime() as place:
        content = bytes(range(256)) * 4000
        await place.upload("deep/er/file.bin", content)
        _same(await place.download("deep/er/file.bin"), content, "content")
        await place.upload(f"{place.home}/.config/secret", b"s", 0o600)
        modes = await _sh(
            place, 'ls -l "$HOME/.config/secret"; ls -ld deep; test -w "$HOME/.config/secret" && echo mine'
        )
        _holds(modes.stdout.startswith(b"-rw-------"), f"mode of a secret file: {modes.stdout!r}")
        _holds(modes.stdout.endswith(b"mine\n"), "an uploaded file isn't the program's own")
        await place.upload("run.sh", b"#!/bin/sh\necho one\n", 0o755)
        await place.upload("run.sh", b"#!/bin/sh\necho two\n", 0o755)
        _same((await place.exec(["./run.sh"], timeout_s=_STEP_S)).stdout, b"two\n", "a file that was replaced")
        await _sh(place, "ln -s deep/er/file.bin link; printf made >made")
        _same(len(await place.download("link")), len(content), "size through a link")
        _same(await place.download("made"), b"made", "a file that a program made")
        async with _fault("larger than 3 bytes", "a file over the limit"):
            await place.download("made", limit_bytes=3)
        async with _fault("can't be read", "a file that isn't there"):
            await place.download("nothing")


@_check
async def stopping(bench: Bench) -> None:
    """A stopped runtime has ended its programs; stopping twice is harmless, and two runtimes don't see one another's files."""
    async with bench.runtime() as one, bench.runtime() as two:
        await one.upload("file", b"1")
        _holds((await _sh(two, "test ! -e file")).succeeded, "a file of one runtime is in another's working directory")
        up = asyncio.Event()
        running = asyncio.create_task(
            two.exec(["/bin/sh", "-c", "echo up; sleep 300"], timeout_s=_STEP_S, on_output=lambda *_: up.set())
        )
        async with asyncio.timeout(_STEP_S):
            await up.wait()
            await two.stop()
            await asyncio.wait({running})
        _holds(running.exception() is not None or not running.result().succeeded, "a program outlived its runtime")
        await two.stop()
        _same(await one.download("file"), b"1", "the other runtime after that")


@_check
async def memory_limit(bench: Bench) -> None:
    """A program that takes more memory than the task allows fails; one below it doesn't."""
    async with bench.runtime(memory_mb=256) as place:
        few = await _sh(place, "dd if=/dev/zero of=/dev/null bs=16M count=1")
        _holds(few.succeeded, f"16 MB of 256 were refused: {few.tail()}")
        much = await _sh(place, "dd if=/dev/zero of=/dev/null bs=900M count=1")
        _holds(much.exit_code != 0, "900 MB were had, with a limit of 256")
        _holds((await _sh(place, "true")).succeeded, "nothing runs any more after a program was refused memory")


@_check
async def process_limit(bench: Bench) -> None:
    """A program can't start more processes than the task allows."""
    if bench.spec.kind == "local" and os.geteuid() == 0:
        raise NotHere("root isn't bound by a limit of processes; run the worker as an ordinary user")
    async with bench.runtime(pids=200) as place:
        script = "n=0; while [ $n -lt 400 ]; do sleep 30 & n=$((n+1)); done; echo all"
        result = await _sh(place, script)
        _holds(b"all" not in result.stdout, "400 processes were started, with a limit of 200")


@_check
async def model_is_reached(bench: Bench) -> None:
    """A program reaches each listener of its runtime at the address that it is given, and talks both ways."""
    async with (
        bench.runtime() as place,
        probes.answering(await place.listen(), b"one") as first,
        probes.answering(await place.listen(), b"two") as second,
    ):
        _holds(first != second, "two listeners have the same address")
        for address, answer in ((first, b"one"), (second, b"two")):
            _same(await _reach(place, address), answer, f"what was said at {address}")
        if (await _sh(place, "command -v bash")).succeeded:
            # The way that is tried below, where it must lead nowhere.
            plain = f"/bin/sh -c '{probes.CONNECT_WITH_BASH}' $1 $2"
            _same(await _reach(place, second, plain), b"two", "what was said when bash connected")


@_check
async def nothing_else_is_reached(bench: Bench) -> None:
    """No service of this machine is reached, on whatever address, and no other session's model."""
    async with bench.runtime() as place, bench.runtime() as other:
        if place.is_trusted:
            raise NotHere(
                "this machine allows no network namespace: programs reach what the machine reaches (is_trusted)"
            )
        async with probes.answering(await other.listen(), b"other") as others, probes.services() as services:
            for address in (others, *services):
                _holds(await _reach(place, address) is None, f"a program reached {address}")
            for address in services:
                way_out = f"nsenter -t 1 -n /bin/sh -c '{probes.CONNECT_WITH_BASH}' $1 $2"
                _holds(
                    await _reach(place, address, way_out) is None, f"a program reached {address} by way of process 1"
                )


async def _gone(place: Runtime, pid_file: str) -> None:
    """Fails unless the process whose number a file holds has ended."""
    script = """
    read -r pid <"$1"; n=0
    while [ $n -lt 30 ]; do
      read -r line 2>/dev/null <"/proc/$pid/stat" || exit 0
      case "${line##*)}" in " Z"*|" X"*) exit 0;; esac
      sleep 0.1; n=$((n+1))
    done
    echo "$line"; exit 1"""
    result = await _sh(place, script, pid_file)
    _holds(result.succeeded, f"a process was left: {result.tail()}")


async def _reach(place: Runtime, address: str, script: str = probes.CONNECT) -> bytes | None:
    """What is said at an address when a program in the runtime connects; None when it can't."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    result = await _sh(place, script, host, port)
    if result.exit_code == probes.NO_TOOL:
        raise NotHere("the image has neither python3, bash nor nc, with one of which a connection could be tried")
    return result.stdout.strip() if result.succeeded and result.stdout else None
