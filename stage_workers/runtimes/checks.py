"""What every runtime must do, as checks that run against a real one: by the tests here, and by `polynya doctor --runtime`."""

from __future__ import annotations

import asyncio
import os
import time

from stage_workers.runtimes.base import Runtime
from stage_workers.runtimes.bench import (
    CHECKS,
    STEP_S,
    Bench,
    Check,
    CheckFailed,
    NotHere,
    check,
    fault_says,
    holds,
    same,
    sh,
)
from stage_workers.runtimes.docker.sweep import EXEC_VARIABLE
from stage_workers.runtimes.programs import MARKER_VARIABLE

__all__ = ["CHECKS", "Bench", "Check", "CheckFailed", "NotHere"]


@check
async def output_and_exit_code(bench: Bench) -> None:
    """A program's two streams come back apart, with its exit code; one that a signal ended has 128 and its number."""
    async with bench.runtime() as place:
        result = await sh(place, "echo out; echo err >&2; exit 3")
        same(
            (result.exit_code, result.stdout, result.stderr, result.timed_out), (3, b"out\n", b"err\n", False), "ended"
        )
        same((await sh(place, "kill -KILL $$")).exit_code, 137, "exit code after SIGKILL")


@check
async def environment_is_the_sessions(bench: Bench) -> None:
    """A program sees the given variables and a HOME of its own, none of the worker's, and the given directories in its PATH."""
    os.environ["POLYNYA_CHECK"] = "the worker's own"
    try:
        async with bench.runtime() as place:
            await place.upload("tools/mine", b"#!/bin/sh\necho found\n", 0o755)
            argv = ["/bin/sh", "-c", 'mine; echo "$GIVEN" "$HOME"; env']
            tools = (f"{place.workdir}/tools",)
            result = await place.exec(argv, timeout_s=STEP_S, env={"GIVEN": "a b'c"}, path_dirs=tools)
            same(result.stdout.splitlines()[:2], [b"found", f"a b'c {place.home}".encode()], "environment")
            holds(b"POLYNYA_CHECK" not in result.stdout, "a variable of the worker's reached the program")
            holds((await sh(place, 'echo x >"$HOME/file" && cat "$HOME/file"')).succeeded, "HOME can't be written")
    finally:
        del os.environ["POLYNYA_CHECK"]


@check
async def directories(bench: Bench) -> None:
    """Programs run in the working directory or where they are told; a directory that isn't there is a fault."""
    async with bench.runtime() as place:
        same((await sh(place, "pwd -P")).stdout.decode().strip(), place.workdir, "working directory")
        await place.upload("sub/file", b"")
        result = await place.exec(["ls"], timeout_s=STEP_S, cwd=f"{place.workdir}/sub")
        same(result.stdout, b"file\n", "files where it was told to run")
        async with fault_says("nowhere", "a program in a directory that isn't there"):
            await place.exec(["true"], timeout_s=STEP_S, cwd=f"{place.workdir}/nowhere")


@check
async def beginning_is_not_pretended(bench: Bench) -> None:
    """A program that prints what it finds in its environment is a program that ran, whatever its exit code says."""
    async with bench.runtime() as place:
        for name in (MARKER_VARIABLE, EXEC_VARIABLE):
            result = await sh(place, f'printf %s "${name}" >&2; exit 126')
            same(result.exit_code, 126, f"exit code of a program that prints {name}")


@check
async def standard_input(bench: Bench) -> None:
    """Standard input is what was given, then ends; it is empty otherwise."""
    async with bench.runtime() as place:
        same((await place.exec(["cat"], timeout_s=STEP_S, stdin=b"words")).stdout, b"words", "input")
        same((await place.exec(["cat"], timeout_s=STEP_S)).stdout, b"", "no input")
        much = await place.exec(["wc", "-c"], timeout_s=STEP_S, stdin=b"x" * 1_000_000)
        same(much.stdout.strip(), b"1000000", "bytes of a large input")
        holds((await place.exec(["true"], timeout_s=STEP_S, stdin=b"x" * 1_000_000)).succeeded, "input left unread")


@check
async def output_streams(bench: Bench) -> None:
    """Output is handed on as it comes, and files go in while a program runs."""
    async with bench.runtime() as place:
        seen: asyncio.Queue[bytes] = asyncio.Queue()
        script = "echo first; while [ ! -e go ]; do sleep 0.1; done; echo second"
        running = asyncio.create_task(
            place.exec(
                ["/bin/sh", "-c", script], timeout_s=STEP_S, on_output=lambda _stream, data: seen.put_nowait(data)
            )
        )
        try:
            async with asyncio.timeout(STEP_S):
                same(await seen.get(), b"first\n", "first piece of output")
            await place.upload("go", b"")
            same((await running).stdout, b"first\nsecond\n", "output")
        finally:
            running.cancel()


@check
async def output_is_bounded(bench: Bench) -> None:
    """Of much output the first and the last part are kept, and all of it is handed on."""
    async with bench.runtime() as place:
        sizes: list[int] = []
        result = await place.exec(
            ["seq", "1", "300000"],
            timeout_s=STEP_S,
            keep_bytes=4000,
            on_output=lambda _stream, data: sizes.append(len(data)),
        )
        same(sum(sizes), sum(len(str(number)) + 1 for number in range(1, 300_001)), "bytes handed on")
        holds(result.stdout.startswith(b"1\n2\n") and result.stdout.endswith(b"\n300000\n"), "head or tail is missing")
        holds(len(result.stdout) < 4200, f"{len(result.stdout)} bytes were kept instead of 4000")


@check
async def closed_streams(bench: Bench) -> None:
    """A program that closes its output itself runs on to its own end."""
    async with bench.runtime() as place:
        result = await sh(place, "exec >&- 2>&-; sleep 1; touch done; exit 7")
        same((result.exit_code, result.timed_out), (7, False), "ended")
        same(await place.download("done"), b"", "what it did after that")


@check
async def time_out_kills(bench: Bench) -> None:
    """At the time-out a program dies although it ignores SIGTERM, with its children; its output until then is kept."""
    async with bench.runtime() as place:
        started = time.monotonic()
        script = "trap '' TERM; sleep 300 & echo $! >pid; echo before; wait; sleep 300; sleep 300"
        result = await sh(place, script, timeout_s=1.5)
        same((result.timed_out, result.stdout), (True, b"before\n"), "timed out")
        # What launched it may have died of SIGTERM before.
        holds(result.exit_code in {137, 143}, f"exit code of what was killed: {result.exit_code}")
        holds(time.monotonic() - started < 40, "it took too long to kill")
        await _gone(place, "pid")


@check
async def nothing_is_left_behind(bench: Bench) -> None:
    """A child that left its session, cleared its environment and outlived its parent is dead when the program's end is told."""
    async with bench.runtime() as place:
        script = (
            "setsid env -i /bin/sh -c 'echo $$ >pid; exec sleep 300' >/dev/null 2>&1 &"
            " while [ ! -s pid ]; do sleep 0.1; done; echo up"
        )
        result = await sh(place, script)
        same((result.exit_code, result.stdout), (0, b"up\n"), "ended")
        await _gone(place, "pid")


@check
async def cancelling_kills(bench: Bench) -> None:
    """A cancelled program is dead, with its children, when the cancellation is through; the runtime goes on."""
    async with bench.runtime() as place:
        up = asyncio.Event()
        script = "sleep 300 & echo $! >pid; echo up; wait"
        task = asyncio.create_task(
            place.exec(["/bin/sh", "-c", script], timeout_s=STEP_S, on_output=lambda _stream, _data: up.set())
        )
        async with asyncio.timeout(STEP_S):
            await up.wait()
        task.cancel()
        await asyncio.wait({task})
        holds(task.cancelled(), "the cancellation was swallowed")
        await _gone(place, "pid")


@check
async def programs_at_the_same_time(bench: Bench) -> None:
    """Programs that run at the same time don't end one another; each has its own output."""
    async with bench.runtime() as place:
        long = asyncio.create_task(sh(place, "while [ ! -e go ]; do sleep 0.1; done; echo long"))
        short = await asyncio.gather(*(sh(place, "echo $1", str(number)) for number in range(3)))
        same([result.stdout for result in short], [b"0\n", b"1\n", b"2\n"], "outputs of the short ones")
        holds((await sh(place, "exit 5", timeout_s=STEP_S)).exit_code == 5, "exit code beside another program")
        await place.upload("go", b"")
        result = await long
        same((result.exit_code, result.stdout), (0, b"long\n"), "the long one")


@check
async def missing_program(bench: Bench) -> None:
    """A program that isn't there ends as in a shell, with 127 and a word on standard error."""
    async with bench.runtime() as place:
        result = await place.exec(["no-such-program-anywhere"], timeout_s=STEP_S)
        same(result.exit_code, 127, "exit code")
        holds(b"no-such-program-anywhere" in result.stderr, f"standard error doesn't name it: {result.stderr!r}")


@check
async def files_in_and_out(bench: Bench) -> None:
    """Files go in with their mode and directories and come out the same; what isn't there or too large is a fault."""
    async with bench.runtime() as place:
        content = bytes(range(256)) * 4000
        await place.upload("deep/er/file.bin", content)
        same(await place.download("deep/er/file.bin"), content, "content")
        await place.upload(f"{place.home}/.config/secret", b"s", 0o600)
        modes = await sh(
            place, 'ls -l "$HOME/.config/secret"; ls -ld deep; test -w "$HOME/.config/secret" && echo mine'
        )
        holds(modes.stdout.startswith(b"-rw-------"), f"mode of a secret file: {modes.stdout!r}")
        holds(modes.stdout.endswith(b"mine\n"), "an uploaded file isn't the program's own")
        await place.upload("run.sh", b"#!/bin/sh\necho one\n", 0o755)
        await place.upload("run.sh", b"#!/bin/sh\necho two\n", 0o755)
        same((await place.exec(["./run.sh"], timeout_s=STEP_S)).stdout, b"two\n", "a file that was replaced")
        await sh(place, "ln -s deep/er/file.bin link; printf made >made")
        same(len(await place.download("link")), len(content), "size through a link")
        same(await place.download("made"), b"made", "a file that a program made")
        async with fault_says("larger than 3 bytes", "a file over the limit"):
            await place.download("made", limit_bytes=3)
        async with fault_says("can't be read", "a file that isn't there"):
            await place.download("nothing")


@check
async def stopping(bench: Bench) -> None:
    """A stopped runtime has ended its programs; stopping twice is harmless, and two runtimes don't see one another's files."""
    async with bench.runtime() as one, bench.runtime() as two:
        await one.upload("file", b"1")
        holds((await sh(two, "test ! -e file")).succeeded, "a file of one runtime is in another's working directory")
        up = asyncio.Event()
        running = asyncio.create_task(
            two.exec(["/bin/sh", "-c", "echo up; sleep 300"], timeout_s=STEP_S, on_output=lambda *_: up.set())
        )
        async with asyncio.timeout(STEP_S):
            await up.wait()
            await two.stop()
            await asyncio.wait({running})
        holds(running.exception() is not None or not running.result().succeeded, "a program outlived its runtime")
        await two.stop()
        same(await one.download("file"), b"1", "the other runtime after that")


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
    result = await sh(place, script, pid_file)
    holds(result.succeeded, f"a process was left: {result.tail()}")


# Those come after these, in what a user reads: registered as it is imported.
from stage_workers.runtimes import confinement  # noqa: E402, F401
