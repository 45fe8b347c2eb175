"""The whole orchestrator over the in-memory bus, killed at random: groups, sessions, early stop and re-queue come to their ends."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.records import (
    BatchConsumed,
    GroupEvent,
    GroupEventType,
    Heartbeat,
    Held,
    Record,
    ScoredTrajectory,
    SessionEvent,
    SessionSpec,
    SessionState,
    SkippedGroup,
    Stage,
    StageCommand,
    Status,
    TaskRequest,
)
from schemas.records import SessionEventType as Fact
from stream_processors.joiner.core import headers_of
from stream_processors.orchestrator.app import Orchestrator
from stream_processors.settings import ProcessorSettings
from tests.stream_processors.driver import Driven

TASK = {"instruction": "do it", "harness": {"name": "shell"}, "min_usable": 2, "max_requeues": 1, "num_samples": 4}
ANSWERS = {
    Stage.INIT: [(Fact.READY, {})],
    Stage.RUNNING: [
        (Fact.STARTED, {"writers": [1]}),
        (Fact.FINISHED, {"status": Status.COMPLETED}),
        (Fact.SEALED, {"writers": [1]}),
    ],
    Stage.POSTRUN: [(Fact.GRADED, {"status": Status.COMPLETED})],
}


class World:
    """A worker, an assembler and a joiner that answer what stands on the log, each record once or, now and then, twice."""

    def __init__(self, bus: MemoryBus, seed: int) -> None:
        self.bus = bus
        self.random = random.Random(seed)
        self.driven = Driven(bus, self.make, seed)
        self.read: Counter[str] = Counter()
        self.now = 0
        self.held: dict[str, Held] = {}
        self.scored: set[str] = set()

    def make(self, bus: MemoryBus) -> Orchestrator:
        orchestrator = Orchestrator(bus, ProcessorSettings(), clock=lambda: self.now)
        orchestrator.views._unread.clear()
        return orchestrator

    def news(self, topic: str) -> list[Record]:
        """What came onto a topic since the last look."""
        all_of_it = self.bus.records(topic)
        seen = sorted(all_of_it, key=lambda d: (d.timestamp_ms, d.partition, d.offset))
        news = seen[self.read[topic] :]
        self.read[topic] = len(seen)
        return [d.decode() for d in news if not d.is_tombstone]

    async def say(self, record: Record, **headers: str) -> None:
        for _ in range(1 + (self.random.random() < 0.2)):
            await self.bus.publish(record, headers=[(k, v.encode()) for k, v in headers.items()])

    async def turn(self) -> None:
        """The orchestrator catches up, killed now and then; the others answer."""
        await self.driven.catch_up(crash_rate=0.1)
        orchestrator = self.driven.processor
        assert isinstance(orchestrator, Orchestrator)
        await self.views(orchestrator)
        for fact in orchestrator.due():
            await self.bus.publish(fact)
        for stage in ("init", "run", "postrun"):
            for command in self.news(f"rollout.stage.{stage}"):
                assert isinstance(command, StageCommand)
                await self.obey(command)
        for event in self.news("rollout.sessions"):
            if isinstance(event, SessionEvent) and event.type is Fact.ENDED and event.session_id not in self.scored:
                await self.score(event)

    async def views(self, orchestrator: Orchestrator) -> None:
        """What the readers would have read."""
        beat = Heartbeat(
            node_id="w", role="worker", incarnation="i", free_init=2, seq=1, holds=list(self.held.values())
        )
        orchestrator.fleet.nodes.clear()
        orchestrator.fleet.take(beat, self.now)
        for delivery in self.bus.records("rollout.groups"):
            await orchestrator.views._see(delivery, delivery.decode())

    async def obey(self, command: StageCommand) -> None:
        held = Held(session_id=command.session_id, attempt=command.attempt)
        self.held[command.session_id] = held
        for kind, fields in ANSWERS[command.stage]:
            await self.say(
                SessionEvent(
                    session_id=command.session_id,
                    type=kind,
                    attempt=command.attempt,
                    round=command.round,
                    lease_id=command.lease_id,
                    worker_id="w",
                    incarnation="i",
                    **fields,  # type: ignore[arg-type]
                )
            )

    async def score(self, ended: SessionEvent) -> None:
        self.scored.add(ended.session_id)
        self.held.pop(ended.session_id, None)
        spec = ended.spec or SessionSpec()
        result = ScoredTrajectory(
            session_id=ended.session_id,
            group_id=spec.group_id,
            status=ended.status,
            spec=spec,
            trajectory_id="t" + ended.session_id,
            revision=1,
        )
        headers = {k: v.decode() for k, v in headers_of(result)}
        await self.say(result, **{**headers, "is_usable": str(int(ended.status is Status.COMPLETED))})


@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_random_every_group_closes_and_every_session_ends_once(
    memory_bus: MemoryBus, seed: int
) -> None:
    """Two tasks, early stop after two, one re-queue; whatever is delivered again, the log holds one end and one close each."""
    world = World(memory_bus, seed)
    for name in ("a", "b"):
        await memory_bus.publish(TaskRequest(task_id=name, policy_id="p", num_samples=4, spec=TASK))
    stale = BatchConsumed(
        trainer_id="tr", step=1, skipped=[SkippedGroup(group_id=ids.group_id("a"), reason="stale"), SkippedGroup()]
    )
    groups = {ids.group_id("a"), ids.group_id("b"), ids.requeue_group_id(ids.group_id("a"), "tr")}
    for n in range(60):
        await world.turn()
        if n == 20:
            await world.say(stale)
    events = [d.decode() for d in memory_bus.records("rollout.groups")]
    closed = {e.group_id: e for e in events if isinstance(e, GroupEvent) and e.type is GroupEventType.CLOSED}
    assert set(closed) == groups
    assert len({e.event_id for e in events if getattr(e, "type", "") == GroupEventType.CLOSED}) == 3
    for group in closed.values():
        assert group.counts["ended"] == 4
        assert group.counts["usable"] >= 2
        assert group.counts["usable"] + group.counts.get("cancelled", 0) == 4
    facts = [d.decode() for d in memory_bus.records("rollout.sessions")]
    ends = {e.session_id: e for e in facts if isinstance(e, SessionEvent) and e.type is Fact.ENDED}
    assert set(ends) == {ids.session_id(g, n) for g in groups for n in range(4)}
    for e in facts:
        if isinstance(e, SessionEvent) and e.type is Fact.ENDED:
            assert e == ends[e.session_id]
    for group_id in groups:
        # Within a session states come in the order of their versions; a repetition is the same state.
        states = [d.decode() for d in memory_bus.records("rollout.state")]
        mine = [s for s in states if isinstance(s, SessionState) and s.group_id == group_id]
        by_version = {(s.session_id, s.state_version): s for s in mine}
        assert all(by_version[s.session_id, s.state_version] == s for s in mine)
        assert {s.stage for s in by_version.values()} >= {Stage.QUEUED, Stage.ENDED}
    assert not memory_bus.records("rollout.groups.orchestrator.dead")
    assert not memory_bus.records("rollout.sessions.orchestrator.dead")
