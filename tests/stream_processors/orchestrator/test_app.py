"""The orchestrator over the in-memory bus: its views, its timer, and what it publishes only once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bus.errors import BusUnavailableError
from bus.memory import MemoryBus
from schemas import ids
from schemas.records import (
    BatchConsumed,
    Control,
    ControlAction,
    GroupEvent,
    GroupEventType,
    Heartbeat,
    SessionEvent,
    Stage,
    TaskRequest,
    TrainerRegistered,
)
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.app import Orchestrator
from stream_processors.orchestrator.row import SessionRow
from stream_processors.settings import ProcessorSettings
from tests.stream_processors.driver import Driven
from tests.stream_processors.orchestrator.facts import good_life, registered, row_in

TASK = {"instruction": "do it", "harness": {"name": "shell"}}


class Clock:
    """A time that a test moves."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def make(bus: MemoryBus, clock: Clock) -> Orchestrator:
    orchestrator = Orchestrator(bus, ProcessorSettings(tick_s=0.01), clock=clock)
    orchestrator.bind({name: {} for name in orchestrator.table_names})
    return orchestrator


@asynccontextmanager
async def in_the_background(orchestrator: Orchestrator) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work) for work in orchestrator.background()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def whole(orchestrator: object) -> Orchestrator:
    """The orchestrator with its views read, though nobody reads them here."""
    assert isinstance(orchestrator, Orchestrator)
    orchestrator.views._unread.clear()
    return orchestrator


async def test_a_task_registers_a_group_and_its_admission_the_sessions_once_by_id(memory_bus: MemoryBus) -> None:
    """Delivered twice, the task publishes the same facts; the rows don't care."""
    driven = Driven(memory_bus, lambda bus: make(bus, Clock()))
    for _ in range(2):
        await memory_bus.publish(TaskRequest(task_id="t", num_samples=450, spec=TASK, submitted_at=5))
    await driven.catch_up()
    assert not memory_bus.records("rollout.sessions")
    for _ in range(2):
        for fact in whole(driven.processor).due():
            await memory_bus.publish(fact)
        await driven.catch_up()
    facts = [d.decode() for d in memory_bus.records("rollout.sessions")]
    assert len({f.event_id for f in facts}) == len(facts) == 450
    groups = [d.decode() for d in memory_bus.records("rollout.groups")]
    assert [(g.type, g.size) for g in groups if isinstance(g, GroupEvent)] == [
        (GroupEventType.REGISTERED, 450),
        (GroupEventType.REGISTERED, 450),
        (GroupEventType.ADMITTED, 450),
    ]
    assert len(driven.tables["sessions"]) == 450


async def test_nothing_is_given_away_before_the_views_are_read(memory_bus: MemoryBus) -> None:
    """What is paused, and how far trainers are, may stand further on the log: neither groups nor sessions go out before."""
    clock = Clock(2**41)
    driven = Driven(memory_bus, lambda bus: make(bus, clock))
    await memory_bus.publish(TaskRequest(task_id="t", spec=TASK))
    await memory_bus.publish(registered(task={"budgets": {"queue_s": 10**12}}))
    await driven.catch_up()
    orchestrator = driven.processor
    assert isinstance(orchestrator, Orchestrator)
    orchestrator.fleet.take(Heartbeat(node_id="w", role="worker", incarnation="i", free_init=1), clock.now)
    assert orchestrator.due() == []
    async with in_the_background(orchestrator):
        async with asyncio.timeout(10):
            while len(memory_bus.records("rollout.groups")) < 2:
                await asyncio.sleep(0.01)
    assert orchestrator.views.are_whole


async def test_the_timer_publishes_a_fact_once_until_it_is_applied(memory_bus: MemoryBus) -> None:
    """The row changes only when the fact comes back; until then, or until it seems lost, it isn't repeated."""
    clock = Clock(2**41)  # behind every time on the log
    driven = Driven(memory_bus, lambda bus: make(bus, clock))
    await memory_bus.publish(registered(task={"budgets": {"queue_s": 10**12}}))
    await driven.catch_up()
    orchestrator = whole(driven.processor)
    beat = Heartbeat(node_id="w", role="worker", incarnation="i", free_init=1)
    orchestrator.fleet.take(beat, clock.now)
    (fact,) = orchestrator.due()
    assert isinstance(fact, SessionEvent)
    assert (fact.type, fact.worker_id) == (Fact.INIT_ASSIGNED, "w")
    assert orchestrator.due() == []
    clock.now += 11_000
    orchestrator.fleet.take(beat, clock.now)
    assert [f.event_id for f in orchestrator.due()] == [fact.event_id]


async def test_what_an_outage_kept_from_the_log_is_due_again_at_once(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what stood behind the fact that failed, though it was never tried."""
    clock = Clock(2**41)
    driven = Driven(memory_bus, lambda bus: make(bus, clock))
    for name in ("one", "two"):
        await memory_bus.publish(registered(session_id=name, task={"budgets": {"queue_s": 10**12}}))
    await driven.catch_up()
    orchestrator = whole(driven.processor)
    orchestrator.fleet.take(Heartbeat(node_id="w", role="worker", incarnation="i", free_init=2), clock.now)
    facts = orchestrator.due()
    assert len(facts) == 2

    async def fails(*_: object, **__: object) -> None:
        raise BusUnavailableError("away")

    monkeypatch.setattr(orchestrator._timer._bus, "publish", fails)
    await orchestrator._timer._publish(facts)
    assert [f.event_id for f in orchestrator.due()] == [f.event_id for f in facts]


async def test_views_see_beats_and_controls(memory_bus: MemoryBus) -> None:
    """A heartbeat makes a worker known, a control is kept; a beat that can't be read is dead-lettered."""
    clock = Clock(0)
    orchestrator = make(memory_bus, clock)
    await memory_bus.publish_raw("rollout.nodes", b"w", b"no avro")
    await memory_bus.publish(Heartbeat(node_id="w", role="worker", incarnation="i", free_init=3))
    control = Control(control_id="c", target="s1", action=ControlAction.CANCEL, at=1)
    await memory_bus.publish(control)
    async with in_the_background(orchestrator):
        async with asyncio.timeout(10):
            while not (orchestrator.fleet.nodes and orchestrator.views.controls.cancels):
                await asyncio.sleep(0.01)
    assert orchestrator.fleet.nodes["w", "i"].beat.free_init == 3
    assert [r.value for r in memory_bus.records("rollout.nodes.orchestrator.dead")] == [b"no avro"]
    # Its time is that of its publication: an issuer's clock, or a missing one, decides nothing.
    (seen,) = orchestrator.views.controls.cancels
    assert (seen.control_id, seen.target) == ("c", "s1")
    assert seen.at == memory_bus.records("rollout.control")[0].timestamp_ms


async def test_freshness_begins_when_everything_is_read_and_ends_with_an_outage(memory_bus: MemoryBus) -> None:
    """Nobody is declared dead by a view that can't ask the broker where the beats end."""
    clock = Clock(0)
    orchestrator = make(memory_bus, clock)
    await memory_bus.publish(Heartbeat(node_id="w", role="worker", incarnation="i"))
    async with in_the_background(orchestrator):
        async with asyncio.timeout(10):
            while orchestrator.fleet.fresh_since is None:
                await asyncio.sleep(0.01)
        clock.now = 500
        orchestrator.assigned((0,))
        assert orchestrator.fleet.fresh_since is None
        async with asyncio.timeout(10):
            while orchestrator.fleet.fresh_since is None:
                await asyncio.sleep(0.01)
        assert orchestrator.fleet.fresh_since == 500


async def test_only_rows_of_own_partitions_are_timed(memory_bus: MemoryBus) -> None:
    """A table keeps rows of partitions that another instance has by now; nothing comes of them here."""
    clock = Clock(0)
    driven = Driven(memory_bus, lambda bus: make(bus, clock))
    await memory_bus.publish(registered())
    await driven.catch_up()
    clock.now = 10**15
    orchestrator = driven.processor
    assert isinstance(orchestrator, Orchestrator)
    partition = await memory_bus.partition_for("rollout.sessions", "s1")
    orchestrator.assigned(())
    assert orchestrator.due() == []
    orchestrator.assigned({partition + 1})
    assert orchestrator.due() == []
    orchestrator.assigned({partition})
    assert [f.type for f in orchestrator.due() if isinstance(f, SessionEvent)] == [Fact.DEADLINE_HIT]


async def test_the_task_is_dropped_with_the_books_of_the_last_seal(memory_bus: MemoryBus) -> None:
    """A session whose end and seal are told needs its task no more; its small row stays."""
    driven = Driven(memory_bus, lambda bus: make(bus, Clock()))
    for fact in [registered(), *good_life()]:
        await memory_bus.publish(fact)
        await driven.catch_up()
    assert driven.tables["tasks"]
    await memory_bus.publish(
        SessionEvent(session_id="s1", type=Fact.SEAL_OVERDUE, lease_id=ids.lease_id("s1", 1), writers=[1])
    )
    await driven.catch_up()
    assert not driven.tables["tasks"]
    assert row_in(Stage.ENDED).session_id.encode() in driven.tables["sessions"]


async def test_an_ended_session_is_forgotten_after_its_retention(memory_bus: MemoryBus) -> None:
    """A fact says so; then neither a row nor a state is left, and a fact that comes again finds nothing to do."""
    clock = Clock()
    driven = Driven(memory_bus, lambda bus: make(bus, clock))
    overdue = SessionEvent(session_id="s1", type=Fact.SEAL_OVERDUE, lease_id=ids.lease_id("s1", 1), writers=[1])
    for fact in [registered(), *good_life(), overdue]:
        await memory_bus.publish(fact)
        await driven.catch_up()
    orchestrator = driven.processor
    assert isinstance(orchestrator, Orchestrator)
    (row,) = (SessionRow.from_bytes(value) for value in driven.tables["sessions"].values())
    clock.now = row.moved_at + 14 * 86_400_000 - 1
    assert orchestrator.due() == []
    clock.now += 1
    (forgotten,) = orchestrator.due()
    assert isinstance(forgotten, SessionEvent)
    assert (forgotten.type, forgotten.session_id) == (Fact.FORGOTTEN, "s1")
    assert orchestrator.due() == []
    clock.now += 10_000
    assert [f.type for f in orchestrator.due() if isinstance(f, SessionEvent)] == [Fact.FORGOTTEN]
    for _ in range(2):
        await memory_bus.publish(forgotten)
        await driven.catch_up()
    assert not driven.tables["sessions"]
    assert memory_bus.records("rollout.state")[-1].is_tombstone
    clock.now += 10_000
    assert orchestrator.due() == []


async def test_a_session_that_goes_on_is_not_forgotten(memory_bus: MemoryBus) -> None:
    """The fact means ended sessions; an id that was used again is another session."""
    driven = Driven(memory_bus, lambda bus: make(bus, Clock()))
    for fact in [registered(), SessionEvent(session_id="s1", type=Fact.FORGOTTEN)]:
        await memory_bus.publish(fact)
        await driven.catch_up()
    assert driven.tables["sessions"]
    assert not any(d.is_tombstone for d in memory_bus.records("rollout.state"))


async def test_admission_waits_for_a_registered_trainer(memory_bus: MemoryBus) -> None:
    """One group may be ahead of it; the second is admitted when the first is consumed. All of it is read from the log."""
    driven = Driven(memory_bus, lambda bus: Orchestrator(bus, ProcessorSettings(tick_s=0.01, max_lag_groups=1)))
    now = time.time_ns() // 1_000_000
    await memory_bus.publish(TrainerRegistered(trainer_id="tr", start="earliest", at=now))
    for name in ("a", "b"):
        await memory_bus.publish(TaskRequest(task_id=name, spec=TASK, submitted_at=now))
    await driven.catch_up()
    orchestrator = driven.processor
    assert isinstance(orchestrator, Orchestrator)

    def admitted() -> list[str]:
        events = [d.decode() for d in memory_bus.records("rollout.groups")]
        return [e.group_id for e in events if isinstance(e, GroupEvent) and e.type is GroupEventType.ADMITTED]

    async with in_the_background(orchestrator):
        async with asyncio.timeout(10):
            while not orchestrator.views.ledger.admitted:
                await driven.catch_up()
                await asyncio.sleep(0.01)
        trainer = orchestrator.views.ledger.trainers["tr"]
        assert orchestrator.views.ledger.lag(trainer) == 1
        assert not [f for f in orchestrator.due() if isinstance(f, GroupEvent)]
        (first,) = admitted()
        await memory_bus.publish(BatchConsumed(trainer_id="tr", step=1, groups=[first]))
        async with asyncio.timeout(10):
            while len(set(admitted())) < 2:
                await driven.catch_up()
                await asyncio.sleep(0.01)


async def test_a_pause_is_known_before_anything_is_given_away(memory_bus: MemoryBus) -> None:
    """A restarted orchestrator reads the controls from their beginning: the session stays where it is until `resume`."""
    await memory_bus.publish(Control(control_id="1", target="*", target_kind="fleet", action=ControlAction.PAUSE))
    driven = Driven(memory_bus, lambda bus: Orchestrator(bus, ProcessorSettings(tick_s=0.01)))
    await memory_bus.publish(registered())
    await driven.catch_up()
    orchestrator = driven.processor
    assert isinstance(orchestrator, Orchestrator)
    await memory_bus.publish(Heartbeat(node_id="w", role="worker", incarnation="i", free_init=1))
    async with in_the_background(orchestrator):
        async with asyncio.timeout(10):
            while not (orchestrator.views.are_whole and orchestrator.fleet.nodes):
                await asyncio.sleep(0.01)
        assert orchestrator.due() == []
        await memory_bus.publish(Control(control_id="2", target="*", target_kind="fleet", action=ControlAction.RESUME))
        async with asyncio.timeout(10):
            while len(memory_bus.records("rollout.sessions")) < 2:
                await asyncio.sleep(0.01)
    (event,) = [e for d in memory_bus.records("rollout.sessions")[1:] if isinstance(e := d.decode(), SessionEvent)]
    assert event.type is Fact.INIT_ASSIGNED
