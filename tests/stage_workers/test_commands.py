"""Which commands a worker takes, through the bus."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus import DeadLetter
from bus.memory import MemoryBus
from schemas import encode
from schemas.records import Boundary, SessionEventType, Stage, StageCommand
from tests.stage_workers.world import World, now_ms, task, world

SLOW = {"prepare": [{"exec": "sleep 60"}]}


@pytest.fixture
async def around(memory_bus: MemoryBus, tmp_path: Path):
    async with world(memory_bus, tmp_path / "state", init_slots=1, ready_slots=2) as made:
        yield made


async def test_full_worker_declines(around: World) -> None:
    """INIT beyond its slots is declined; the heartbeat says before that there is no room."""
    await around.command(Stage.INIT, "s1", task(**SLOW))
    await around.until(lambda: around.beats()[-1].free_init == 0 and around.beats()[-1].holds)
    await around.command(Stage.INIT, "s2", task())
    declined = await around.heard(SessionEventType.DECLINED, "s2")
    assert (declined.worker_id, declined.incarnation, declined.attempt) == ("worker-1", around.incarnation, 1)
    assert [held.session_id for held in around.beats()[-1].holds] == ["s1"]


async def test_ready_is_bounded(around: World) -> None:
    """INIT admits only while READY has room, although its own slots are free."""
    await around.to_ready("s1", task())
    await around.to_ready("s2", task())
    beat = await around.until(lambda: next((b for b in around.beats()[::-1] if len(b.holds) == 2), None))
    assert (beat.free_init, beat.free_ready, beat.free_run) == (0, 0, 4)
    await around.command(Stage.INIT, "s3", task())
    await around.heard(SessionEventType.DECLINED, "s3")
    await around.cancel("s1")
    await around.let_go("s1")
    await around.to_ready("s4", task())


async def test_commands_of_others_are_skipped(around: World) -> None:
    """Commands to another worker, to an earlier incarnation, and expired ones do nothing."""
    await around.command(Stage.INIT, "s1", task(), incarnation="earlier")
    await around.command(Stage.INIT, "s2", task(), expires_at=now_ms() - 1)
    elsewhere = StageCommand(stage=Stage.INIT, worker_id="worker-2", incarnation=around.incarnation, session_id="s3")
    partition = await around.bus.partition_for("rollout.stage.init", "worker-1")
    await around.bus.publish_raw("rollout.stage.init", b"worker-1", encode(elsewhere).value, partition=partition)
    await around.to_ready("s4", task())
    assert {event.session_id for event in around.events()} == {"s4"}


async def test_commands_from_before_the_start_are_skipped(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """A worker reads its commands from the end as it was before its first heartbeat."""
    async with world(memory_bus, tmp_path / "one") as first:
        await first.to_ready("s1", task())
    async with world(memory_bus, tmp_path / "two") as second:
        await second.to_ready("s2", task())
        assert second.kinds("s1") == ["ready"]
        assert [held.session_id for held in second.beats()[-1].holds] in ([], ["s2"])


async def test_repeated_command_does_nothing(around: World) -> None:
    """The same command again (an orchestrator that processed a fact twice) starts nothing twice."""
    at = now_ms()
    for _ in range(2):
        await around.command(Stage.INIT, "s1", task(), issued_at=at)
    await around.heard(SessionEventType.READY, "s1")
    for _ in range(2):
        await around.command(Stage.RUNNING, "s1", task())
    await around.heard(SessionEventType.SEALED, "s1")
    assert around.kinds("s1") == ["ready", "started", "finished", "sealed"]
    assert len(around.proxy.opened) == 1


async def test_poison_is_set_aside(around: World) -> None:
    """A command that can't be decoded goes to the dead letters with its bytes and the reason, and the next one works."""
    partition = await around.bus.partition_for("rollout.stage.init", "worker-1")
    await around.bus.publish_raw("rollout.stage.init", b"worker-1", b"\x01garbage", partition=partition)
    await around.to_ready("s1", task())
    (dead,) = around.bus.records("rollout.stage.init.worker.dead")
    assert dead.value == b"\x01garbage"
    letter = DeadLetter.read(dead)
    assert (letter.reason, letter.component, letter.source.topic) == ("malformed", "worker", "rollout.stage.init")


async def test_unreadable_task_is_answered(around: World) -> None:
    """A command whose task this worker can't read is set aside, and the orchestrator is told that INIT failed."""
    await around.command(Stage.INIT, "s1", {"instruction": "no harness"})
    failed = await around.heard(SessionEventType.INIT_FAILED, "s1")
    assert failed.boundary is Boundary.SANDBOX
    assert "harness" in failed.error
    await around.until(lambda: around.bus.records("rollout.stage.init.worker.dead"), "the dead letter")


async def test_unknown_schema_stops_and_says_so(around: World) -> None:
    """An unknown schema id is no poison: the reader stops there, and the heartbeats name the place."""
    unknown = b"\0" + (999_999).to_bytes(4, "big") + b"body"
    partition = await around.bus.partition_for("rollout.stage.init", "worker-1")
    await around.bus.publish_raw("rollout.stage.init", b"worker-1", unknown, partition=partition)
    problems = await around.until(lambda: around.beats()[-1].details["problems"], "the problem")
    assert "999999" in problems["rollout.stage.init"]
    await around.command(Stage.INIT, "s1", task())
    await around.until(lambda: around.beats()[-1].seq > around.beats()[0].seq + 2, "more beats")
    assert around.kinds("s1") == []
    assert not around.bus.records("rollout.stage.init.worker.dead")


async def test_runs_beyond_the_slots_wait(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """A second run waits for the first one's slot, and starts when it is free."""
    async with world(memory_bus, tmp_path / "state", run_slots=1) as around:
        go = tmp_path / "go"
        await around.to_running("s1", task(f"while [ ! -e {go} ]; do sleep 0.05; done"))
        await around.to_ready("s2", task())
        await around.command(Stage.RUNNING, "s2", task())
        beat = await around.until(lambda: next((b for b in around.beats()[::-1] if len(b.holds) == 2), None))
        assert beat.free_run == 0
        assert around.kinds("s2") == ["ready"]
        await asyncio.to_thread(go.touch)
        await around.heard(SessionEventType.SEALED, "s2")
        kinds = [(event.session_id, str(event.type)) for event in around.events()]
        assert kinds.index(("s1", "finished")) < kinds.index(("s2", "started"))
