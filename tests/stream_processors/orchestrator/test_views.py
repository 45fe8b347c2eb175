"""How far the orchestrator trusts what it sees: nothing is concluded from silence by somebody who wasn't listening."""

from __future__ import annotations

from bus.memory import MemoryBus
from schemas.records import Heartbeat, SessionEvent
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.views import Views

TTL_MS = 10_000


class Clock:
    """A time that a test moves."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def make(bus: MemoryBus) -> tuple[Views, Clock]:
    clock = Clock()
    return Views(bus, "orchestrator", lease_ttl_ms=TTL_MS, clock=clock), clock


async def probe_for(views: Views, clock: Clock, ms: int, step: int = 1000) -> None:
    """Probe regularly for a while."""
    for _ in range(ms // step):
        clock.now += step
        await views.probe()


async def test_a_full_period_of_reading_comes_first(memory_bus: MemoryBus) -> None:
    """Fresh only after a whole time to live in which everything was read."""
    views, clock = make(memory_bus)
    await probe_for(views, clock, 11_000)
    assert not views.fleet.is_fresh(clock.now, TTL_MS)
    await probe_for(views, clock, 2_000)
    assert views.fleet.is_fresh(clock.now, TTL_MS)


async def test_a_process_that_stood_still_begins_again(memory_bus: MemoryBus) -> None:
    """Frozen for longer than half a time to live: beats may have come and gone meanwhile."""
    views, clock = make(memory_bus)
    await probe_for(views, clock, 20_000)
    clock.now += 60_000
    await views.probe()
    assert views.fleet.fresh_since == clock.now
    assert not views.fleet.is_fresh(clock.now + TTL_MS - 1, TTL_MS)


async def test_beats_that_are_not_read_yet_cast_doubt(memory_bus: MemoryBus) -> None:
    """The log has more of them than were taken a tick ago."""
    views, clock = make(memory_bus)
    position = await memory_bus.publish(Heartbeat(node_id="w", role="worker", incarnation="i"))
    views._read_to["rollout.nodes"] = {position.partition: 0}
    await probe_for(views, clock, 5_000)
    assert views.fleet.fresh_since is None
    views._read_to["rollout.nodes"] = {position.partition: position.offset + 1}
    await probe_for(views, clock, 1_000)
    assert views.fleet.fresh_since == clock.now


async def test_facts_that_are_not_handled_in_time_cast_doubt(memory_bus: MemoryBus) -> None:
    """A moment's backlog is nothing; half a time to live behind, what workers told may not be known yet."""
    views, clock = make(memory_bus)
    handled = await memory_bus.publish(SessionEvent(session_id="s", type=Fact.READY))
    for delivery in memory_bus.records("rollout.sessions"):
        views.handled(delivery)
    await probe_for(views, clock, 5_000)
    assert views.fleet.fresh_since is not None
    await memory_bus.publish(SessionEvent(session_id="s", type=Fact.STARTED))
    await probe_for(views, clock, 4_000)
    assert views.fleet.fresh_since is not None
    await probe_for(views, clock, 7_000)
    assert views.fleet.fresh_since is None
    views.handled(memory_bus.records("rollout.sessions")[-1])
    await probe_for(views, clock, 1_000)
    assert views.fleet.fresh_since == clock.now
    assert handled.offset == 0


async def test_other_partitions_begin_again(memory_bus: MemoryBus) -> None:
    """What was handled of old ones says nothing about new ones."""
    views, clock = make(memory_bus)
    await probe_for(views, clock, 15_000)
    views.assigned()
    assert views.fleet.fresh_since is None


async def test_an_outage_begins_again(memory_bus: MemoryBus) -> None:
    """A broker that can't say where the log ends may have beats that nobody has read."""
    views, clock = make(memory_bus)
    await probe_for(views, clock, 15_000)
    clock.now += 1000

    async def unreachable(_: str) -> dict[int, int]:
        raise TimeoutError

    memory_bus.end_offsets = unreachable  # type: ignore[method-assign]
    await views.probe()
    assert views.fleet.fresh_since is None
