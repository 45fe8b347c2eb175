"""The worker as a process: start, restart, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from schemas.records import SessionEventType
from stage_workers.reaper import StateDirBusyError, owner_of, prune_logs, reap, runtimes_dir, state_lock
from stage_workers.runtimes import LocalRuntime
from stage_workers.runtimes.processes import Family, is_alive, members
from stage_workers.service import WorkerService
from tests.stage_workers.world import DEADLINE_S, task, world


async def test_stop_kills_and_says_nothing_of_the_run(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """A stopping worker kills its harnesses, tells no outcome (so that another attempt is made), and holds nothing at the end."""
    async with world(memory_bus, tmp_path / "state") as around:
        await around.to_running("s1", task("trap '' TERM; sleep 60 & wait"))
        around.stop.set()
        await around.until(lambda: around.beats()[-1].is_draining and not around.beats()[-1].holds, "the last beat")
        assert not members(Family(directory=str(tmp_path)))
        assert around.kinds("s1") == ["ready", "started"]
        assert around.beats()[-1].free_init == 0


async def test_draining_worker_finishes_what_it_has(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """With time to drain, a run comes to its seal; new INITs are declined meanwhile."""
    async with world(memory_bus, tmp_path / "state", drain_s=20) as around:
        go = tmp_path / "go"
        await around.to_running("s1", task(f"while [ ! -e {go} ]; do sleep 0.05; done"))
        around.stop.set()
        await around.until(lambda: around.beats()[-1].is_draining)
        from schemas.records import Stage, Status

        await around.command(Stage.INIT, "s2", task())
        await around.heard(SessionEventType.DECLINED, "s2")
        await asyncio.to_thread(go.touch)
        await around.heard(SessionEventType.SEALED, "s1")
        await around.fact(SessionEventType.ENDED, "s1", status=Status.COMPLETED)
        await around.until(lambda: not around.beats()[-1].holds)
        assert around.kinds("s1") == ["ready", "started", "finished", "sealed"]


async def test_each_start_is_another_incarnation(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """Two starts of one worker are told apart, and beat under the same id."""
    incarnations = set()
    for _ in range(2):
        async with world(memory_bus, tmp_path / "state") as around:
            incarnations.add(around.incarnation)
            assert {beat.node_id for beat in around.beats()} == {"worker-1"}
            assert "local" in around.beats()[0].details["runtimes"]
    assert len(incarnations) == 2


async def test_one_worker_per_state_directory(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """A second worker in the same state directory is refused, with what to do."""
    async with world(memory_bus, tmp_path / "state") as around:
        second = WorkerService(around.settings, memory_bus)
        with pytest.raises(StateDirBusyError, match="state directory of its own"):
            await second.run(asyncio.Event())
        with pytest.raises(StateDirBusyError), state_lock(tmp_path / "state"):
            pass


def test_a_worker_s_mark_is_its_state_directory_s(tmp_path: Path) -> None:
    """The same in every incarnation; another one for a worker of the same name and path elsewhere, which may use the same engine."""
    here = tmp_path / "state"
    owner = owner_of(here, "worker-1")
    assert owner_of(here, "worker-1") == owner != owner_of(here, "worker-2")
    assert [path.name for path in here.iterdir()] == ["owner.id"]
    here.rename(tmp_path / "elsewhere")
    assert owner_of(here, "worker-1") != owner


async def test_orphans_are_reaped(tmp_path: Path) -> None:
    """What a dead incarnation left running is killed at the start, and its directories are removed; others' are not touched."""
    owner = owner_of(tmp_path, "worker-1")
    old = LocalRuntime(runtimes_dir(tmp_path), "s1.1.0", owner=f"{owner}/dead-incarnation")
    await old.start()
    env = {"POLYNYA_RUNTIME": f"{owner}/dead-incarnation/s1.1.0"}
    orphan = await asyncio.create_subprocess_exec("sleep", "60", env=env, cwd="/")
    other = await asyncio.create_subprocess_exec("sleep", "60", env={"POLYNYA_RUNTIME": owner + "0/x"}, cwd="/")
    try:
        # Until the child has executed its program, its environment is still ours.
        marked = Family(marker=f"POLYNYA_RUNTIME={owner}".encode())
        async with asyncio.timeout(10):
            while not members(marked):
                await asyncio.sleep(0.01)
        assert await reap(tmp_path, "worker-1") == 1
        async with asyncio.timeout(10):
            assert await orphan.wait() == -signal.SIGKILL
        assert is_alive(other.pid)
        assert not runtimes_dir(tmp_path).exists()
    finally:
        other.kill()
        await other.wait()


async def test_what_no_session_holds_is_swept(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """A program and a directory that a failed teardown left are ended while the worker works; running sessions aren't touched."""
    async with world(memory_bus, tmp_path / "state", sweep_every_s=0.1) as around:
        await around.to_running("s1", task("sleep 60"))
        place = runtimes_dir(around.settings.state_dir) / "s9.1.1"
        place.mkdir()
        owner = owner_of(around.settings.state_dir, "worker-1")
        env = {"POLYNYA_RUNTIME": f"{owner}/{around.incarnation}/s9.1.1"}
        orphan = await asyncio.create_subprocess_exec("sleep", "60", env=env, cwd="/")
        async with asyncio.timeout(DEADLINE_S):
            assert await orphan.wait() == -signal.SIGKILL
            while place.exists():
                await asyncio.sleep(0.02)
        assert around.kinds("s1") == ["ready", "started"]
        assert (runtimes_dir(around.settings.state_dir) / "s1.1.0").exists()


def test_old_logs_go_first(tmp_path: Path) -> None:
    """Only the newest sessions' logs are kept."""
    for number in range(5):
        (tmp_path / f"s{number}" / "attempt-1").mkdir(parents=True)
        os.utime(tmp_path / f"s{number}", (number, number))
    assert prune_logs(tmp_path, 2) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s3", "s4"]
    assert prune_logs(tmp_path, 2) == 0
    assert prune_logs(tmp_path / "nowhere", 2) == 0


WORKER = """
import asyncio, pathlib, sys
from bus.memory import MemoryBus
from stage_workers import service
from stage_workers.settings import WorkerSettings

service.connect = lambda _settings: MemoryBus()
settings = WorkerSettings(worker_id="w", state_dir=pathlib.Path(sys.argv[1]), admin_key="k", heartbeat_s=0.2)
asyncio.run(service.run(settings, None, on_ready=lambda: print("ready", flush=True)))
print("closed", flush=True)
"""


async def test_sigterm_ends_the_process_in_order(tmp_path: Path) -> None:
    """SIGTERM stops a worker process: it closes everything and exits with 0."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(tmp_path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while b"ready" not in await process.stdout.readline():
                pass
            os.kill(process.pid, signal.SIGTERM)
            output = await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert b"worker.stopped" in output
    assert output.rstrip().endswith(b"closed")
