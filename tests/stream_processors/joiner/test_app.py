"""The joiner over the in-memory bus: revisions of trajectories, crashes, forgetting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.memory import MemoryBus
from schemas.arrays import pack_ids
from schemas.records import Record, Reward, ScoredTrajectory, SessionEvent, SessionSpec, Status, Trace, Trajectory
from schemas.records import SessionEventType as Fact
from stream_processors.joiner.app import Joiner
from tests.stream_processors.driver import Driven

LEASE = "lease"
PLACE = {"session_id": "s", "lease_id": LEASE}
SPEC = SessionSpec(task_id="t", group_id="g")
REGISTERED = SessionEvent(session_id="s", type=Fact.REGISTERED, spec=SPEC)
ENDED = SessionEvent(
    **PLACE,
    type=Fact.ENDED,
    status=Status.COMPLETED,
    winning_lease=LEASE,
    expects_trajectory=True,
    expects_reward=True,
)
BUILT = Trajectory(**PLACE, traces=[Trace(prompt_ids=pack_ids([1]))], content_digest="one")
REVISED = replace(BUILT, traces=[*BUILT.traces, Trace(index=1)], content_digest="two", revision=2)
REWARD = Reward(**PLACE, value=1.0)


async def play(driven: Driven, *facts: Record) -> None:
    for fact in facts:
        await driven.bus.publish(fact)
        await driven.catch_up()


def scored(bus: MemoryBus) -> list[ScoredTrajectory]:
    return [d.decode() for d in bus.records("trajectory.scored")]  # type: ignore[misc]


async def test_t38_a_revised_trajectory_replaces_the_first(memory_bus: MemoryBus) -> None:
    """The first revision's bytes are gone from the table by then: both are read from the log where they stand."""
    driven = Driven(memory_bus, Joiner)
    await play(driven, REGISTERED, BUILT, ENDED, REWARD)
    assert not driven.tables["trajectories"]
    await play(driven, REVISED, REVISED)
    first, second = scored(memory_bus)
    assert (first.revision, second.revision) == (1, 1001)
    assert [len(s.trajectory.traces) for s in (first, second) if s.trajectory] == [1, 2]


@pytest.mark.parametrize("seed", range(12))
async def test_crashes_change_no_number(memory_bus: MemoryBus, seed: int) -> None:
    """Whatever is processed again in whatever order: a number has one content, the first is 1, the last is the same."""
    driven = Driven(memory_bus, Joiner, seed=seed)
    for fact in (REGISTERED, BUILT, REVISED, ENDED, REWARD, replace(REWARD, value=0.5)):
        await memory_bus.publish(fact)
    await driven.catch_up(crash_rate=0.4)
    found = scored(memory_bus)
    by_number = {s.revision: (s.reward, len(s.trajectory.traces)) for s in found if s.trajectory}
    assert all((s.reward, len(s.trajectory.traces)) == by_number[s.revision] for s in found if s.trajectory)
    assert found[0].revision == 1
    assert by_number.keys() >= {1, 1002}
    assert by_number[1002] == (0.5, 2)


async def test_a_forgotten_session_leaves_nothing(memory_bus: MemoryBus) -> None:
    """Neither its row nor a trajectory that waited for an end."""
    driven = Driven(memory_bus, Joiner)
    await play(driven, REGISTERED, BUILT)
    assert driven.tables["trajectories"]
    await play(driven, SessionEvent(session_id="s", type=Fact.FORGOTTEN))
    assert not driven.tables["trajectories"]
    assert not driven.tables["sessions"]
