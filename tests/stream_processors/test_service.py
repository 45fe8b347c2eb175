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
    Boundary,
    Control,
    ControlAction,
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

# Framed under a schema that exists (the first), with a body that is none.
POISON = b"\x00\x00\x00\x00\x01\xff\xff"

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

    def hold(self, command: StageCommand) -> None:
        """List a session in every beat from now on."""
        held = Held(session_id=command.session_id, attempt=command.attempt)
        self.holds = [*(h for h in self.holds if h != held), held]

    async def keep_beating(self, interval_s: float = 0.5) -> None:
        """Beat until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(interval_s)

    async def command(self, stage: str, session_id: str) -> StageCommand:
        topic = f"rollout.stage.{stage}"
        found = await wait_for(self.bus, topic, lambda r: getattr(r, "session_id", "") == session_id, timeout_s=90)
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
        self.hold(init)
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
        beating = asyncio.create_task(worker.keep_beating())
        await kafka_bus.publish(
            TaskRequest(task_id=task_id, policy_id="policy", harness="shell", num_samples=2, spec=TASK)
        )
        async with asyncio.timeout(60):
            await asyncio.gather(*(worker.live(s) for s in sessions))
            for session_id in sessions:
                await wait_for(
                    kafka_bus, "trajectory.scored", lambda r, s=session_id: getattr(r, "session_id", "") == s
                )
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
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


async def test_poison_is_set_aside_and_the_consumer_goes_on(kafka_bus: KafkaBus) -> None:
    """Garbage on each consumed topic lands in that topic's dead letters, bytes and reason; what follows is handled."""
    names = {
        "orchestrator": (
            "rollout.tasks",
            "rollout.groups",
            "rollout.sessions",
            "trainer.consumed",
            "trajectory.built",
            "trajectory.scored",
        ),
        "assembler": ("capture.completions", "rollout.sessions"),
        "joiner": ("trajectory.built", "reward.assigned", "rollout.sessions"),
    }
    session_id = ids.session_id("g", 0)
    for topic in {t for topics in names.values() for t in topics}:
        await kafka_bus.publish_raw(topic, session_id.encode(), POISON)
    async with processors(kafka_bus, *names) as services:
        for name, topics in names.items():
            for topic in topics:
                async with asyncio.timeout(40):
                    async for dead in kafka_bus.tail([f"{topic}.{name}.dead"]):
                        assert dead.value == POISON
                        assert dead.headers["dead_reason"]
                        assert dead.headers["dead_component"] == name.encode()
                        break
        await kafka_bus.publish(ended_without_lease(session_id))
        scored = await wait_for(
            kafka_bus, "trajectory.scored", lambda r: getattr(r, "session_id", "") == session_id, beside=POISON
        )
        assert isinstance(scored, ScoredTrajectory)
        assert (scored.status, scored.trajectory) == (Status.FAILED, None)
        assert {s.processor.name: s.health().buried for s in services} == {n: len(t) for n, t in names.items()}
        assert all(s.health().is_healthy for s in services)


def ended_without_lease(session_id: str) -> SessionEvent:
    """A terminal fact that expects nothing: the joiner scores it at once."""
    return SessionEvent(session_id=session_id, type=Fact.ENDED, status=Status.FAILED, boundary=Boundary.SANDBOX)


async def test_an_unknown_schema_stops_its_partition_only(kafka_bus: KafkaBus) -> None:
    """The health names the id, nothing is dead-lettered, the other partitions go on; the record is still there later."""
    held, free = await keys_of_two_partitions(kafka_bus)
    unknown = b"\x00" + (9999).to_bytes(4, "big") + b"body"
    await kafka_bus.publish_raw("reward.assigned", held.encode(), unknown)
    async with processors(kafka_bus, "joiner") as (service,):
        async with asyncio.timeout(30):
            while service.health().is_healthy:
                await asyncio.sleep(0.05)
        await kafka_bus.publish(Reward(session_id=held, value=1.0))
        await kafka_bus.publish(ended_without_lease(free))
        await wait_for(kafka_bus, "trajectory.scored", lambda r: getattr(r, "session_id", "") == free)
        (problem,) = service.health().problems
        assert (problem.schema_id, problem.reason, problem.topic) == (9999, "unknown_schema", "reward.assigned")
        assert "9999" in problem.text
        assert service.health().buried == 0
    # Nothing of that partition was acknowledged: the next one meets it again.
    async with processors(kafka_bus, "joiner") as (service,):
        async with asyncio.timeout(30):
            while not service.health().problems:
                await asyncio.sleep(0.05)
        assert service.health().problems[0].offset == 0


async def keys_of_two_partitions(bus: KafkaBus) -> tuple[str, str]:
    """Two session ids of different partitions."""
    first = ids.session_id("g", 0)
    home = await bus.partition_for("reward.assigned", first)
    for n in range(1, 100):
        other = ids.session_id("g", n)
        if await bus.partition_for("reward.assigned", other) != home:
            return first, other
    raise AssertionError("a hundred ids in one of three partitions")


async def test_a_lost_worker_a_cancel_and_a_failed_init_each_end_once(kafka_bus: KafkaBus) -> None:
    """No attempt left after a loss, a cancel by control, a failing INIT: one end and one score each, with the boundary."""
    task_id = "task-ends"
    one_attempt = {**TASK, "max_attempts": 1}
    group = ids.group_id(task_id)
    lost, cancelled, failing = (ids.session_id(group, n) for n in range(3))
    worker, victim = FakeWorker(kafka_bus), FakeWorker(kafka_bus, "w2")
    fast = {"lease_ttl_s": 2.0, "seal_grace_s": 1.0, "end_grace_s": 1.0, "command_grace_s": 30.0}
    async with processors(kafka_bus, "orchestrator", "assembler", "joiner", **fast):
        await kafka_bus.publish(
            TaskRequest(task_id=task_id, policy_id="policy", harness="shell", num_samples=3, spec=one_attempt)
        )
        await victim.beat(free=3)
        init = await worker.command("init", failing)
        await victim.tell(init, Fact.INIT_FAILED, boundary=Boundary.SANDBOX, error="no image")
        for session_id in (lost, cancelled):
            await victim.tell(await worker.command("init", session_id), Fact.READY)
            await victim.tell(await worker.command("run", session_id), Fact.STARTED, writers=[1])
        await kafka_bus.publish(
            Control(control_id="c1", target=cancelled, action=ControlAction.CANCEL, reason="enough")
        )
        found: dict[str, ScoredTrajectory] = {}
        async with asyncio.timeout(60):
            async for delivery in kafka_bus.tail(["trajectory.scored"]):
                record = delivery.decode()
                assert isinstance(record, ScoredTrajectory)
                found[record.session_id] = record
                if len(found) == 3:
                    break
    assert {s: (r.status, r.boundary) for s, r in found.items()} == {
        lost: (Status.FAILED, Boundary.SANDBOX),
        cancelled: (Status.CANCELLED, Boundary.NONE),
        failing: (Status.FAILED, Boundary.SANDBOX),
    }
    assert found[failing].trajectory is None
    gaps = found[lost].trajectory
    assert gaps is not None
    assert [g.writer for g in gaps.capture_incomplete] == [1]
    ended = [e for e in await read_all(kafka_bus, "rollout.sessions") if getattr(e, "type", "") == Fact.ENDED]
    assert len(ended) == 3
