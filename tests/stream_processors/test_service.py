"""The three processors as Faust apps on the real Kafka, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bus import KafkaBus
from bus.admin import TopicAdmin
from schemas import ids
from schemas.records import (
    Heartbeat,
    Held,
    Reward,
    ScoredTrajectory,
    SessionEvent,
    SessionSealed,
    SessionState,
    Stage,
    StageCommand,
    Status,
    TaskRequest,
    Trajectory,
)
from schemas.records import SessionEventType as Fact
from stream_processors import ProcessorService, ProcessorSettings, changelog_topics, run
from tests.conftest import TEST_PARTITIONS
from tests.stream_processors.helpers import call, delivery, read_all, row_of, wait_for

pytestmark = pytest.mark.broker

TASK = {"instruction": "do it", "harness": {"name": "shell"}, "policy_id": "policy", "max_attempts": 2}


@asynccontextmanager
async def processors(bus: KafkaBus, *names: str, **fields: float) -> AsyncIterator[list[ProcessorService]]:
    """The named processors, ready, on the bus's cluster and prefix."""
    async with TopicAdmin(bus.settings) as admin:
        await admin.apply(extra=changelog_topics(), partitions=TEST_PARTITIONS)
    stop, started = asyncio.Event(), asyncio.Event()
    services: list[ProcessorService] = []

    def on_start(them: list[ProcessorService]) -> None:
        services.extend(them)
        started.set()

    settings = ProcessorSettings(bus=bus.settings, **fields)
    task = asyncio.create_task(run(names, settings, stop=stop, on_start=on_start))
    try:
        async with asyncio.timeout(40):
            await started.wait()
            await asyncio.gather(*(s.ready.wait() for s in services))
        yield services
    finally:
        stop.set()
        async with asyncio.timeout(30):
            await task


class FakeWorker:
    """Plays a worker by hand: beats, and tells the facts of one session."""

    def __init__(self, bus: KafkaBus, worker_id: str = "w1") -> None:
        self.bus = bus
        self.worker_id = worker_id
        self.seq = 0
        self.holds: list[Held] = []

    async def beat(self, free: int = 4) -> None:
        self.seq += 1
        await self.bus.publish(
            Heartbeat(
                node_id=self.worker_id,
                role="worker",
                incarnation="i1",
                free_init=free,
                free_ready=free,
                free_run=free,
                holds=self.holds,
                seq=self.seq,
            )
        )

    async def command(self, stage: str, session_id: str) -> StageCommand:
        topic = f"rollout.stage.{stage}"
        found = await wait_for(self.bus, topic, lambda r: getattr(r, "session_id", "") == session_id)
        assert isinstance(found, StageCommand)
        return found

    async def tell(self, command: StageCommand, kind: Fact, **fields: object) -> None:
        await self.bus.publish(
            SessionEvent(
                session_id=command.session_id,
                type=kind,
                attempt=command.attempt,
                round=command.round,
                lease_id=command.lease_id,
                worker_id=self.worker_id,
                incarnation="i1",
                **fields,  # type: ignore[arg-type]
            )
        )

    async def live(self, session_id: str) -> None:
        """A whole good session with two calls."""
        init = await self.command("init", session_id)
        await self.tell(init, Fact.READY)
        command = await self.command("run", session_id)
        lease = command.lease_id
        await self.tell(command, Fact.STARTED, writers=[1])
        first = call(1, [1, 2], [10, 99], lease=lease, session=session_id)
        second = call(2, [1, 2, 10, 99, 50], [20, 99], lease=lease, session=session_id)
        for fact in (first, second):
            await self.bus.publish(fact)
            await self.bus.publish(delivery(fact.call_seq, lease=lease, session=session_id))
        await self.tell(command, Fact.FINISHED, status=Status.COMPLETED, exit_code=0)
        await self.bus.publish(SessionSealed(session_id=session_id, lease_id=lease, writer=1, last_seq=2))
        await self.tell(command, Fact.SEALED, writers=[1])
        await self.command("postrun", session_id)
        await self.bus.publish(Reward(session_id=session_id, lease_id=lease, value=0.5, grader="g"))
        await self.tell(command, Fact.GRADED, status=Status.COMPLETED, rewards=["reward"], expects_reward=True)


async def test_a_task_becomes_one_scored_trajectory_per_session(kafka_bus: KafkaBus) -> None:
    """Task → registered → assigned → granted → run → sealed → graded → ended → scored, each exactly once."""
    task_id = "task-1"
    group = ids.group_id(task_id)
    sessions = [ids.session_id(group, n) for n in range(2)]
    async with processors(kafka_bus, "orchestrator", "assembler", "joiner"):
        worker = FakeWorker(kafka_bus)
        await worker.beat()
        await kafka_bus.publish(
            TaskRequest(task_id=task_id, policy_id="policy", harness="shell", num_samples=2, spec=TASK)
        )
        async with asyncio.timeout(60):
            await asyncio.gather(*(worker.live(s) for s in sessions))
            for session_id in sessions:
                await wait_for(
                    kafka_bus, "trajectory.scored", lambda r, s=session_id: getattr(r, "session_id", "") == s
                )
    scored = [r for r in await read_all(kafka_bus, "trajectory.scored") if isinstance(r, ScoredTrajectory)]
    assert sorted(s.session_id for s in scored) == sorted(sessions)
    for one in scored:
        assert (one.status, one.reward, one.revision, one.group_id) == (Status.COMPLETED, 0.5, 1, group)
        assert one.trajectory is not None
        assert [row_of(t) for t in one.trajectory.traces] == [([1, 2], [10, 99, 50, 20, 99], "11011")]
        assert one.trajectory.traces[0].reward == 0.5
    ended = [e for e in await read_all(kafka_bus, "rollout.sessions") if getattr(e, "type", "") == Fact.ENDED]
    assert len(ended) == 2
    built = await read_all(kafka_bus, "trajectory.built")
    assert len({t.event_id for t in built if isinstance(t, Trajectory)}) == 2
    states = [s for s in await read_all(kafka_bus, "rollout.state") if isinstance(s, SessionState)]
    assert {s.session_id for s in states if s.stage is Stage.ENDED} == set(sessions)
