"""Trajectories, scores and trainers' reports as facts of the orchestrator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bus.memory import MemoryBus
from schemas.records import (
    BatchConsumed,
    Counts,
    GroupEvent,
    GroupEventType,
    ScoredTrajectory,
    SessionEvent,
    SessionSpec,
    SkippedGroup,
    Status,
    Trajectory,
)
from schemas.records import SessionEventType as Fact
from stream_processors.joiner.core import headers_of
from stream_processors.orchestrator.app import Orchestrator
from stream_processors.settings import ProcessorSettings
from tests.stream_processors.driver import Driven


def orchestrator(bus: MemoryBus) -> Driven:
    return Driven(bus, lambda b: Orchestrator(b, ProcessorSettings()))


def scored(**fields: object) -> ScoredTrajectory:
    """A good result of the session at place 3."""
    base = {
        "session_id": "s",
        "group_id": "g",
        "status": Status.COMPLETED,
        "reward": 0.0,
        "spec": SessionSpec(group_id="g", index=3, group_size=4),
        "trajectory": Trajectory(counts=Counts(trainable_tokens=5)),
    }
    return ScoredTrajectory(**{**base, **fields})  # type: ignore[arg-type]


def counted(bus: MemoryBus) -> Iterator[GroupEvent]:
    """The facts that sessions of groups have their results."""
    for delivery in bus.records("rollout.groups"):
        event = delivery.decode()
        if isinstance(event, GroupEvent) and event.type is GroupEventType.SCORED:
            yield event


@pytest.mark.parametrize("has_headers", [True, False], ids=["headers", "from the record"])
async def test_a_score_counts_in_its_group(memory_bus: MemoryBus, has_headers: bool) -> None:
    """By what the joiner says in the headers; a record from before that is read itself."""
    driven = orchestrator(memory_bus)
    position = await memory_bus.publish(scored(), headers=headers_of(scored()) if has_headers else ())
    await driven.catch_up()
    (event,) = counted(memory_bus)
    assert (event.group_id, event.session_id, event.index) == ("g", "s", 3)
    assert (event.status, event.is_usable) == (Status.COMPLETED, True)
    assert (event.partition, event.offset) == (position.partition, position.offset)


@pytest.mark.parametrize(
    "result",
    [
        scored(status=Status.TIMEOUT),
        scored(reward=None),
        scored(reward=float("nan")),
        scored(trajectory=None),
        scored(trajectory=Trajectory(counts=Counts(trainable_tokens=0))),
    ],
    ids=["time-out", "ungraded", "no number", "no trajectory", "nothing to train"],
)
def test_what_cannot_be_trained_is_not_usable(result: ScoredTrajectory) -> None:
    """Only a completed session with a verdict and a token to train counts towards `min_usable`."""
    assert dict(headers_of(result))["is_usable"] == b"0"
    assert dict(headers_of(scored()))["is_usable"] == b"1"


async def test_only_headers_are_read(memory_bus: MemoryBus) -> None:
    """A body that can't be decoded doesn't matter where the headers say enough; without them it is set aside."""
    driven = orchestrator(memory_bus)
    named = [(k, v) for k, v in [("group_id", b"g"), ("session_id", b"s"), *headers_of(scored())]]
    await memory_bus.publish_raw("trajectory.scored", b"g", b"no avro", named)
    await memory_bus.publish_raw("trajectory.scored", b"g", b"no avro either")
    await driven.catch_up()
    assert len(list(counted(memory_bus))) == 1
    assert [d.value for d in memory_bus.records("trajectory.scored.orchestrator.dead")] == [b"no avro either"]


async def test_a_trajectory_is_told_to_its_session(memory_bus: MemoryBus) -> None:
    """Once per lease; one of no lease closes no books."""
    driven = orchestrator(memory_bus)
    await memory_bus.publish(Trajectory(session_id="s", lease_id="l"))
    await memory_bus.publish(Trajectory(session_id="s"))
    await driven.catch_up()
    (event,) = [d.decode() for d in memory_bus.records("rollout.sessions")]
    assert isinstance(event, SessionEvent)
    assert (event.type, event.session_id, event.lease_id) == (Fact.BUILT, "s", "l")


async def test_a_trainers_report_asks_for_stale_and_short_groups_only(memory_bus: MemoryBus) -> None:
    """Per group one wish, for this trainer; the other reasons would be the same again."""
    driven = orchestrator(memory_bus)
    reasons = {"g1": "stale", "g2": "short", "g3": "policy", "g4": "unreadable", "": "stale"}
    skipped = [SkippedGroup(group_id=g, reason=why) for g, why in reasons.items()]
    await memory_bus.publish(BatchConsumed(trainer_id="tr", step=1, skipped=skipped))
    await driven.catch_up()
    events = [d.decode() for d in memory_bus.records("rollout.groups")]
    wishes = {(e.group_id, e.reason, e.for_trainer) for e in events if isinstance(e, GroupEvent)}
    assert wishes == {("g1", "stale", "tr"), ("g2", "short", "tr")}
