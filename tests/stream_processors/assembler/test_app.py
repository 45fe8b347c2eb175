"""The assembler over the in-memory bus: growing while a session runs, late calls, crashes, forgetting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas.codec import encode
from schemas.records import Record, SessionEvent, SessionOpened, SessionSealed, Trajectory
from schemas.records import SessionEventType as Fact
from stream_processors.assembler import app as assembler_app
from stream_processors.assembler.app import Assembler
from stream_processors.assembler.core import assemble
from stream_processors.assembler.row import LeaseRow, SessionRow
from stream_processors.builders import Lease
from tests.stream_processors.driver import Driven
from tests.stream_processors.helpers import LEASE, SESSION, E, call, delivered, delivery, row_of

CALLS = delivered(call(1, [1, 2], [10, E]), call(2, [1, 2, 10, E, 50], [20, E]))
LATE = call(3, [1, 2, 10, E, 50, 20, E, 60], [30, E])
OPENED = SessionOpened(session_id=SESSION, lease_id=LEASE, writer=1, opened_at=1)


def sealed(last_seq: int, writer: int = 1) -> SessionSealed:
    return SessionSealed(session_id=SESSION, lease_id=LEASE, writer=writer, last_seq=last_seq)


def event(kind: Fact, **fields: Any) -> SessionEvent:
    return SessionEvent(session_id=SESSION, type=kind, lease_id=LEASE, **fields)


WHOLE: list[Record] = [OPENED, *CALLS, sealed(2), event(Fact.SEALED, writers=[1])]


async def play(driven: Driven, *facts: Record) -> None:
    for fact in facts:
        await driven.bus.publish(fact)
        await driven.catch_up()


def built(bus: MemoryBus) -> list[Trajectory]:
    return [d.decode() for d in bus.records("trajectory.built")]  # type: ignore[misc]


@pytest.fixture
def driven(memory_bus: MemoryBus) -> Driven:
    return Driven(memory_bus, Assembler)


async def test_closing_reads_no_record_again(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call was taken when it came: at the close nothing is decoded, and the log isn't asked."""
    monkeypatch.setattr(assembler_app, "_grow_from", lambda values: pytest.fail("the kept records were read"))
    monkeypatch.setattr(Assembler, "_reread", lambda *_: pytest.fail("the log was read"))
    await play(driven, *WHOLE)
    (trajectory,) = built(driven.bus)
    assert [row_of(t) for t in trajectory.traces] == [([1, 2], [10, E, 50, 20, E], "11011")]
    assert not driven.tables["records"]


@pytest.mark.parametrize("at", range(1, len(WHOLE)))
async def test_a_restart_changes_nothing(memory_bus: MemoryBus, at: int) -> None:
    """Wherever the process died, the trajectory has the bytes of one that never did, and of the batch."""
    driven = Driven(memory_bus, Assembler, seed=at)
    await play(driven, *WHOLE[:at])
    driven.crash()
    await play(driven, *WHOLE[at:])
    one, *again = built(memory_bus)
    assert all(encode(other).value == encode(one).value for other in again)
    row = SessionRow(leases={LEASE: LeaseRow(opened_at=1)})
    batch = assemble(row, SESSION, LEASE, Lease(CALLS), one.built_at)
    assert encode(batch).value == encode(one).value


async def test_a_rebalance_empties_the_memory(driven: Driven) -> None:
    """Another instance may have gone on meanwhile: what is kept in the tables decides."""
    await play(driven, *WHOLE[:3])
    driven.processor.assigned(())
    await play(driven, *WHOLE[3:])
    assert built(driven.bus)[0].counts.trained == 2


async def test_t38_a_late_call_is_a_second_revision(driven: Driven) -> None:
    """T38: revision 1 stands; revision 2 has the same id, the call in it, and its delivery fact makes it trained."""
    await play(driven, *WHOLE, LATE)
    await play(driven, delivery(3))
    first, second, third = built(driven.bus)
    assert [(t.revision, t.counts.calls, t.counts.trained) for t in (first, second, third)] == [
        (1, 2, 2),
        (2, 3, 2),
        (3, 3, 3),
    ]
    assert {t.trajectory_id for t in (first, second, third)} == {first.trajectory_id}
    assert second.counts.untrainable == {"delivery_unknown": 1}
    assert len({t.content_digest for t in (first, second, third)}) == 3
    await play(driven, LATE, delivery(3), *CALLS, sealed(2))
    assert len(built(driven.bus)) == 3


async def test_t38_a_spool_that_comes_late_closes_its_hole_once(driven: Driven) -> None:
    """A lease that was closed with a hole is said again when the hole is filled and its writer sealed, not at each call."""
    first, first_delivery, *rest = CALLS
    await play(driven, OPENED, first, first_delivery, event(Fact.SEALED, writers=[1]), event(Fact.SEAL_OVERDUE))
    await play(driven, *rest)
    assert [t.revision for t in built(driven.bus)] == [1]
    await play(driven, sealed(2))
    holed, whole = built(driven.bus)
    assert (holed.counts.trained, len(holed.capture_incomplete)) == (1, 1)
    assert (whole.revision, whole.counts.trained, whole.capture_incomplete) == (2, 2, [])


async def test_t38_a_seal_that_comes_late_takes_the_gap_back(driven: Driven) -> None:
    """All calls were there, their delivery and their writer's seal were not: with the seal the trajectory is no longer incomplete."""
    first, first_delivery, second, second_delivery = CALLS
    await play(driven, OPENED, first, first_delivery, second)
    await play(driven, event(Fact.SEALED, writers=[1]), event(Fact.SEAL_OVERDUE))
    await play(driven, second_delivery)
    await play(driven, sealed(2), sealed(2))
    gapped, whole = built(driven.bus)
    assert [(g.writer, g.after_seq) for g in gapped.capture_incomplete] == [(1, 2)]
    assert gapped.counts.untrainable == {"delivery_unknown": 1}
    assert (whole.revision, whole.capture_incomplete, whole.counts.trained) == (2, [], 2)


async def test_t38_a_crash_repeats_a_revision_under_its_id(memory_bus: MemoryBus) -> None:
    """Published, but not written down: the same revision again, the same event."""
    driven = Driven(memory_bus, Assembler)
    await play(driven, *WHOLE)
    driven.commit()
    await play(driven, LATE)
    table = driven.tables["sessions"]
    del table.journal[table.committed :]
    driven.crash()
    await driven.catch_up()
    _, *revisions = built(memory_bus)
    assert len({r.event_id for r in revisions}) == 1
    assert {r.revision for r in revisions} == {2}


class Killed(BaseException):
    """What no boundary may catch."""


HOLED: list[Record] = [OPENED, *CALLS[:2], event(Fact.SEALED, writers=[1]), event(Fact.SEAL_OVERDUE), *CALLS[2:]]


GAPPED: list[Record] = [OPENED, *CALLS, event(Fact.SEALED, writers=[1]), event(Fact.SEAL_OVERDUE)]


@pytest.mark.parametrize(
    ("before", "last"),
    [(WHOLE, LATE), (HOLED, sealed(2)), (GAPPED, sealed(2))],
    ids=["call", "seal", "seal_alone"],
)
async def test_t38_a_crash_between_the_row_and_its_revision_loses_none(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, before: list[Record], last: Record
) -> None:
    """The row that knows of the late fact survives, the revision wasn't published: it is when the fact comes again."""
    driven = Driven(memory_bus, Assembler)
    await play(driven, *before)
    driven.commit()

    async def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Assembler, "_publish", killed)
        with pytest.raises(Killed):
            await play(driven, last)
    for table in driven.tables.values():
        table.committed = len(table.journal)
    driven.crash()
    await driven.catch_up()
    assert [t.revision for t in built(memory_bus)] == [1, 2]


async def test_a_forgotten_session_leaves_no_row(driven: Driven) -> None:
    """Also when its lease never closed."""
    await play(driven, *WHOLE[:4])
    assert driven.tables["records"]
    await play(driven, event(Fact.FORGOTTEN))
    assert not driven.tables["records"]
    assert not driven.tables["sessions"]
    async with asyncio.timeout(5):
        await play(driven, event(Fact.FORGOTTEN))
    assert not driven.tables["sessions"]
