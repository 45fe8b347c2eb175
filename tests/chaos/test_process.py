"""A part in a process: kept alive, hit, frozen, stopped; who is to blame for a death."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.plan import How
from tests.chaos.process import PartDiedError, PartProcess

CODE = """
import json, os, signal, sys, time
if len(sys.argv) > 2: signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + ".new", "w").write(json.dumps({"pid": os.getpid()}))
os.replace(sys.argv[1] + ".new", sys.argv[1])
while True: time.sleep(60)
"""


def part(tmp_path: Path, *more: str, code: str = CODE) -> PartProcess:
    """A part that says that it is ready and then waits."""
    ready = tmp_path / "ready.json"
    argv = (sys.executable, "-S", "-c", code, str(ready), *more)
    return PartProcess("one", "kind", argv, ready_file=ready, log_file=tmp_path / "one.log", env={})


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_killed_part_comes_back(tmp_path: Path) -> None:
    """Another process, ready again, and nobody says that it died by itself."""
    one = part(tmp_path)
    first = (await one.start())["pid"]
    assert await one.hit(How.KILL, 0.05)
    await until(lambda: one.pid not in {None, first})
    assert (await one.ready())["pid"] == one.pid
    assert (one.restarts, one.deaths) == (1, [])
    await one.stop()
    assert one.pid is None


async def test_a_part_that_is_down_isnt_hit(tmp_path: Path) -> None:
    """A blow between a death and the return is left out."""
    one = part(tmp_path)
    await one.start()
    await one.hit(How.KILL, 60)
    await until(lambda: one.pid is None)
    assert not await one.hit(How.KILL, 0)
    await one.stop()


async def test_a_frozen_part_goes_on(tmp_path: Path) -> None:
    """The same process, stopped for the while and running again."""
    one = part(tmp_path)
    pid = (await one.start())["pid"]
    freezing = asyncio.create_task(one.hit(How.FREEZE, 0.2))
    await until(lambda: state_of(pid) == "T")
    assert await freezing
    await until(lambda: state_of(pid) != "T")
    assert (one.pid, one.restarts) == (pid, 0)
    await one.stop()


async def test_a_death_of_its_own_is_noted(tmp_path: Path) -> None:
    """It is started again, and the report says that nobody hit it."""
    one = part(tmp_path)
    pid = (await one.start())["pid"]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: one.pid not in {None, pid})
    assert ["ended by itself with exit code -9" in death for death in one.deaths] == [True]
    await one.stop()


async def test_a_part_that_doesnt_stop_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed, and the report says so."""
    monkeypatch.setattr("tests.chaos.process.STOP_WITHIN_S", 0.2)
    one = part(tmp_path, "deaf")
    await one.start()
    await one.stop()
    assert ["didn't stop" in death for death in one.deaths] == [True]
    assert one.pid is None


async def test_a_part_that_never_is_ready_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its log is in the error."""
    monkeypatch.setattr("tests.chaos.process.READY_WITHIN_S", 2.0)
    one = part(tmp_path, code="import time; print('no port', flush=True); time.sleep(60)")
    with pytest.raises(PartDiedError, match="no port"):
        await one.start()
    await one.stop()
