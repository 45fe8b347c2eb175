"""The worker on a real Kafka: addressed commands, facts, rewards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus import KafkaBus
from schemas import ids
from schemas.records import (
    Heartbeat,
    Record,
    Reward,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    Stage,
    StageCommand,
)
from stage_workers.service import WorkerService
from stage_workers.settings import WorkerSettings
from tests.stage_workers.world import ADMIN_KEY, DEADLINE_S, FakeProxy, now_ms, task

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


async def test_session_on_kafka(kafka_bus: KafkaBus, tmp_path: Path) -> None:
    """A session from INIT to `graded`, with the test as orchestrator, in the order in which the log has it."""
    bus, told = kafka_bus, asyncio.Queue[Record]()

    async def listen() -> None:
        async for delivery in bus.tail(["rollout.sessions", "reward.assigned"]):
            told.put_nowait(delivery.decode())

    async def heard(kind: SessionEventType) -> SessionEvent:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                record = await told.get()
                seen.append(record.type if isinstance(record, SessionEvent) else record.NAME)
                if isinstance(record, SessionEvent) and record.type is kind:
                    return record

    seen: list[str] = []
    settings = WorkerSettings(worker_id="worker-1", state_dir=tmp_path, admin_key=ADMIN_KEY, heartbeat_s=0.5)
    worker, proxy, stop, ready = WorkerService(settings, bus), FakeProxy(), asyncio.Event(), asyncio.Event()
    spec = task("echo hi > made.txt", evaluator={"name": "command", "options": {"command": "test -s made.txt"}})

    async def command(stage: Stage) -> None:
        await bus.publish(
            StageCommand(
                stage=stage,
                worker_id="worker-1",
                incarnation=worker.incarnation,
                session_id="s1",
                lease_id="" if stage is Stage.INIT else ids.lease_id("s1", 1),
                expires_at=now_ms() + 60_000,
                spec=SessionSpec(task_id="t", group_id="g", policy_id="p"),
                task=spec,
            )
        )

    async with proxy.serving():
        await bus.publish(
            Heartbeat(
                node_id="p",
                role="proxy",
                data_address="http://127.0.0.1:9",
                admin_address=proxy.address,
                at=now_ms(),
            )
        )
        listener = asyncio.create_task(listen())
        running = asyncio.create_task(worker.run(stop, on_ready=ready.set))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await ready.wait()
            await command(Stage.INIT)
            await heard(SessionEventType.READY)
            await command(Stage.RUNNING)
            await heard(SessionEventType.SEALED)
            await command(Stage.POSTRUN)
            graded = await heard(SessionEventType.GRADED)
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await running
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
    while not told.empty():
        seen.append(told.get_nowait().NAME)
    assert graded.expects_reward
    # The reward is on another topic: a reader may see it a moment before or after `graded`.
    assert [kind for kind in seen if kind != Reward.NAME] == ["ready", "started", "finished", "sealed", "graded"]
    assert await _count(bus, "reward.assigned") == 1


async def _count(bus: KafkaBus, topic: str) -> int:
    return sum((await bus.end_offsets(topic)).values())
