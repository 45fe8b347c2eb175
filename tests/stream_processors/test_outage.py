"""Kafka goes away for a while in the middle of a session: the processors wait, come back by themselves, and lose nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus import BusSettings, connect
from bus.admin import TopicAdmin
from compose.kafka import KafkaCluster
from schemas import ids
from schemas.records import ScoredTrajectory, Status, TaskRequest
from schemas.records import SessionEventType as Fact
from tests.conftest import TEST_PARTITIONS
from tests.stream_processors.helpers import read_all, wait_for
from tests.stream_processors.test_service import TASK, FakeWorker, processors

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.timeout(300)]

OUTAGE_S = 20.0


async def test_twenty_seconds_without_kafka_cost_nothing(tmp_path: Path) -> None:
    """Down after the run was commanded, up again: the lease isn't expired meanwhile, the session ends and is scored once."""
    cluster = await asyncio.to_thread(KafkaCluster(tmp_path / "kafka").start)
    try:
        settings = BusSettings(bootstrap=cluster.bootstrap, blob_url=f"file://{tmp_path}/blobs")
        async with TopicAdmin(settings) as admin:
            await admin.apply(partitions=TEST_PARTITIONS)
        async with connect(settings) as bus:
            session_id = ids.session_id(ids.group_id("task-outage"), 0)
            worker = FakeWorker(bus)
            # A time to live that is shorter than the outage: silence while nobody can speak must not end the lease.
            async with processors(bus, "orchestrator", "assembler", "joiner", lease_ttl_s=10.0) as services:
                await bus.publish(
                    TaskRequest(task_id="task-outage", policy_id="policy", harness="shell", num_samples=1, spec=TASK)
                )
                await worker.beat()
                init = await worker.command("init", session_id)
                worker.hold(init)
                beating = asyncio.create_task(worker.keep_beating())
                await worker.tell(init, Fact.READY)
                await worker.command("run", session_id)
                await asyncio.to_thread(cluster.stop)
                await asyncio.sleep(OUTAGE_S)
                await asyncio.to_thread(cluster.start)
                async with asyncio.timeout(150):
                    await worker.live(session_id)
                    await wait_for(bus, "trajectory.scored", lambda _: True, timeout_s=120)
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
                assert all(s.health().is_healthy for s in services)
            scored = [r for r in await read_all(bus, "trajectory.scored") if isinstance(r, ScoredTrajectory)]
            events = await read_all(bus, "rollout.sessions")
    finally:
        await asyncio.to_thread(cluster.stop)
    assert {(s.trajectory_id, s.revision, s.status) for s in scored} == {(scored[0].trajectory_id, 1, Status.COMPLETED)}
    assert scored[0].trajectory is not None
    assert scored[0].trajectory.counts.trained == 2
    kinds = [getattr(e, "type", "") for e in events]
    assert Fact.LEASE_EXPIRED not in kinds
    assert Fact.INIT_LOST not in kinds
