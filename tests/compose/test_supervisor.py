"""The supervisor: readiness, restarts, giving up, orderly stops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from compose.runtime_info import is_alive
from compose.supervisor import RESTARTS_MAX, Part, PartFailedError, Supervisor, tail_of

READY_THEN_WAIT = """
import os, pathlib, signal, sys, time
with open(sys.argv[2], 'a') as f: f.write(f'{os.getpid()}\\n')
pathlib.Path(sys.argv[1]).write_text('{"pid": %d}' % os.getpid())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True: time.sleep(0.05)
"""


def part(tmp_path: Path, script: str, name: str = "it", **options: float) -> Part:
    """A part that runs a Python script with its ready file and a journal as arguments."""
    ready, journal = tmp_path / f"{name}.json", tmp_path / f"{name}.journal"
    argv = (sys.executable, "-c", script, str(ready), str(journal))
    return Part(name=name, argv=argv, ready_file=ready, log_file=tmp_path / f"{name}.log", **options)  # type: ignore[arg-type]


async def until(condition: object, within_s: float = 20.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


async def test_start_waits_for_the_ready_file_and_returns_what_it_says(tmp_path: Path) -> None:
    """A started part is ready, and its ready file's content is handed on."""
    supervisor = Supervisor()
    ready = await supervisor.start(part(tmp_path, READY_THEN_WAIT))
    assert ready == {"pid": supervisor.pids["it"]}
    await supervisor.stop()
    assert supervisor.pids == {}


async def test_a_part_that_ends_while_starting_is_an_error_that_shows_its_log(tmp_path: Path) -> None:
    """The error names the exit code and carries the end of the log."""
    supervisor = Supervisor()
    with pytest.raises(PartFailedError, match=r"exit code 3[\s\S]*no such planet"):
        await supervisor.start(part(tmp_path, "import sys; print('no such planet'); sys.exit(3)"))
    await supervisor.stop()


async def test_a_killed_part_is_started_again(tmp_path: Path) -> None:
    """After SIGKILL a new process takes over, and `pids` shows it."""
    supervisor = Supervisor()
    await supervisor.start(part(tmp_path, READY_THEN_WAIT))
    first = supervisor.pids["it"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.pids.get("it", first) != first)
    await until((tmp_path / "it.json").exists)
    assert not is_alive(first)
    await supervisor.stop()


async def test_a_part_that_keeps_dying_fails_the_stack(tmp_path: Path) -> None:
    """More deaths than allowed within a minute end `run_until` with an error instead of restarting for ever."""
    supervisor = Supervisor()
    once_ready = "import pathlib, sys\nwith open(sys.argv[2], 'a') as f: f.write('x')\npathlib.Path(sys.argv[1]).write_text('{}')\nimport time; time.sleep(0.2)"
    await supervisor.start(part(tmp_path, once_ready))
    with pytest.raises(PartFailedError, match="died"):
        await asyncio.wait_for(supervisor.run_until(asyncio.Event()), 40)
    assert len((tmp_path / "it.journal").read_text()) == RESTARTS_MAX + 1
    await supervisor.stop()


async def test_a_part_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """`stop` leaves no process behind, whatever the process thinks of it."""
    stubborn = READY_THEN_WAIT.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    supervisor = Supervisor()
    await supervisor.start(part(tmp_path, stubborn, stop_within_s=0.3))
    pid = supervisor.pids["it"]
    await supervisor.stop()
    assert not is_alive(pid)


def test_the_end_of_a_log_shows_the_exception_without_its_frames(tmp_path: Path) -> None:
    """A person reads what went wrong; the frames stay in the log, and a log without a traceback is shown as it is."""
    path = tmp_path / "part.log"
    path.write_text('before\nTraceback (most recent call last):\n  File "x"\n    f()\n\nOSError: in use\ntry another\n')
    assert tail_of(path) == "OSError: in use\ntry another"
    path.write_text("one\ntwo\nthree\n")
    assert tail_of(path, lines=2) == "two\nthree"
    assert tail_of(tmp_path / "none.log") == "(no log)"
