"""Crashes anywhere: the processors on an in-memory log, killed between any two records, lose nothing and repeat only ids."""

from __future__ import annotations

from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.codec import encode
from schemas.records import (
    Record,
    Reward,
    ScoredTrajectory,
    SessionEvent,
    SessionOpened,
    SessionSealed,
    SessionSpec,
    Status,
    Trajectory,
)
from schemas.records import SessionEventType as Fact
from stream_processors.assembler.app import Assembler
from stream_processors.joiner.app import Joiner
from stream_processors.orchestrator.app import Orchestrator
from stream_processors.settings import ProcessorSettings
from tests.stream_processors.driver import Driven
from tests.stream_processors.helpers import call, delivered
from tests.stream_processors.orchestrator.facts import good_life, lease, registered

SPEC = SessionSpec(task_id="t", group_id="g", policy_id="policy")


def session_records(session: str, *, big: bool = False) -> list[Record]:
    """Everything about one good session, in a causal order."""
    lease_id = ids.lease_id(session, 1)
    common: dict[str, Any] = {"session_id": session, "lease_id": lease_id}
    prompt = list(range(1, 80_000 if big else 5))
    calls = [
        call(1, prompt, [10, 99], lease=lease_id, session=session),
        call(2, [*prompt, 10, 99, 50], [20, 99], lease=lease_id, session=session),
    ]
    return [
        SessionEvent(session_id=session, type=Fact.REGISTERED, spec=SPEC),
        SessionEvent(type=Fact.GRANTED, **common),
        SessionOpened(writer=1, spec=SPEC, **common),
        *delivered(*calls),
        SessionSealed(writer=1, last_seq=2, **common),
        SessionEvent(type=Fact.SEALED, writers=[1], **common),
        Reward(value=1.0, **common),
        SessionEvent(
            session_id=session,
            type=Fact.ENDED,
            status=Status.COMPLETED,
            winning_lease=lease_id,
            expects_trajectory=True,
            expects_reward=True,
        ),
    ]


def contents(bus: MemoryBus, topic: str) -> dict[str, set[bytes]]:
    """The different values per event id of a topic; times of building left out."""
    found: dict[str, set[bytes]] = {}
    for delivery in bus.records(topic):
        record = delivery.decode()
        found.setdefault(record.event_id, set()).add(_timeless(record))
    return found


def _timeless(record: Record) -> bytes:
    if isinstance(record, Trajectory):
        return record.content_digest.encode()
    if isinstance(record, ScoredTrajectory):
        return f"{record.revision} {record.content_digest}".encode()
    return encode(record).value


@pytest.mark.parametrize("seed", range(8))
async def test_assembler_and_joiner_survive_any_crash(seed: int) -> None:
    """Six sessions, read in a chance order with crashes: one trajectory and one score each, of one content each."""
    async with MemoryBus(partitions=2) as bus:
        for n in range(6):
            for record in session_records(f"session-{n}"):
                await bus.publish(record)
        assembler = Driven(bus, Assembler, seed)
        await assembler.catch_up(crash_rate=0.15)
        joiner = Driven(bus, Joiner, seed)
        await joiner.catch_up(crash_rate=0.15)
        built, scored = contents(bus, "trajectory.built"), contents(bus, "trajectory.scored")
        assert len(built) == len(scored) == 6
        assert all(len(values) == 1 for values in [*built.values(), *scored.values()])
        for delivery in bus.records("trajectory.built"):
            record = delivery.decode()
            assert isinstance(record, Trajectory)
            assert (record.counts.trained, record.capture_incomplete) == (2, [])
        assert not assembler.tables["records"], "kept records of closed leases are dropped"
        assert not joiner.tables["trajectories"]


@pytest.mark.parametrize("seed", range(8))
async def test_the_orchestrator_survives_any_crash(seed: int) -> None:
    """A whole life with crashes: every output once by id and content, one end, and the row at its end."""
    async with MemoryBus(partitions=2) as bus:
        settings = ProcessorSettings()
        orchestrator = Driven(bus, lambda b: Orchestrator(b, settings), seed)
        for fact in [registered(), *good_life()]:
            if fact.type is Fact.GRANTED:
                continue  # it publishes that itself
            await bus.publish(fact)
            await orchestrator.catch_up(crash_rate=0.3)
        for topic in ("rollout.sessions", "rollout.state", "rollout.stage.init", "rollout.stage.run"):
            assert all(len(values) == 1 for values in contents(bus, topic).values()), topic
        ended = {i for i, d in _events(bus) if d.type is Fact.ENDED}
        assert len(ended) == 1
        grants = {d.lease_id for _, d in _events(bus) if d.type is Fact.GRANTED}
        assert grants == {lease()}
        for topic in ("rollout.stage.init", "rollout.stage.run", "rollout.stage.postrun"):
            assert len(contents(bus, topic)) == 1


def _events(bus: MemoryBus) -> list[tuple[str, SessionEvent]]:
    events = [d.decode() for d in bus.records("rollout.sessions")]
    return [(e.event_id, e) for e in events if isinstance(e, SessionEvent)]


async def test_large_calls_are_kept_as_their_claim_checks() -> None:
    """The changelog holds references, not 300 KB prompts; trajectory and score come out whole."""
    async with MemoryBus(partitions=2) as bus:
        for record in session_records("session-1", big=True):
            await bus.publish(record)
        assembler = Driven(bus, Assembler)
        await assembler.catch_up()
        sizes = [len(value) for _, value in assembler.tables["records"].journal if value]
        assert max(sizes) < 2_000
        await Driven(bus, Joiner).catch_up()
        (scored,) = bus.records("trajectory.scored")
        assert len(scored.value) < 2_000
        tail = [d.decode() async for d in bus.tail(["trajectory.scored"], until_end=True)]
        assert isinstance(tail[0], ScoredTrajectory)
        assert tail[0].trajectory is not None
        assert tail[0].trajectory.counts.trained == 2


async def test_before_it_says_incomplete_the_assembler_asks_the_log() -> None:
    """A table that lost a record (its row knows the call) is repaired from the log when the lease closes."""
    async with MemoryBus(partitions=2) as bus:
        *most, sealed, _, _ = session_records("session-1")
        for record in most:
            await bus.publish(record)
        assembler = Driven(bus, Assembler)
        await assembler.catch_up()
        kept = next(k for k in assembler.tables["records"] if k.endswith(b"|2|c"))
        del assembler.tables["records"][kept]
        await bus.publish(sealed)
        await assembler.catch_up()
        (built,) = [d.decode() for d in bus.records("trajectory.built")]
        assert isinstance(built, Trajectory)
        assert (built.counts.trained, built.capture_incomplete) == (2, [])


async def test_another_record_under_the_same_call_is_a_conflict() -> None:
    """It goes to the dead letters as `id_conflict`; the first stands."""
    async with MemoryBus(partitions=2) as bus:
        records = session_records("session-1")
        for record in records[:6]:
            await bus.publish(record)
        await bus.publish(call(1, [1, 2], [77], lease=ids.lease_id("session-1", 1), session="session-1"))
        for record in records[6:]:
            await bus.publish(record)
        assembler = Driven(bus, Assembler)
        await assembler.catch_up()
        (dead,) = bus.records("capture.completions.assembler.dead")
        assert dead.headers["dead_reason"] == b"id_conflict"
        (built,) = [d.decode() for d in bus.records("trajectory.built")]
        assert isinstance(built, Trajectory)
        assert built.counts.trained == 2


async def test_a_later_verdict_reads_the_trajectory_again_from_the_log() -> None:
    """The joiner keeps no traces after the first revision; the second has them all the same."""
    async with MemoryBus(partitions=2) as bus:
        for record in session_records("session-1"):
            await bus.publish(record)
        await Driven(bus, Assembler).catch_up()
        joiner = Driven(bus, Joiner)
        await joiner.catch_up()
        assert not joiner.tables["trajectories"]
        lease_id = ids.lease_id("session-1", 1)
        await bus.publish(Reward(session_id="session-1", lease_id=lease_id, value=0.0, grader_version="2"))
        await joiner.catch_up()
        first, second = [d.decode() for d in bus.records("trajectory.scored")]
        assert isinstance(first, ScoredTrajectory)
        assert isinstance(second, ScoredTrajectory)
        assert (first.revision, second.revision, second.reward) == (1, 2, 0.0)
        assert second.trajectory is not None
        assert len(second.trajectory.traces) == 1
