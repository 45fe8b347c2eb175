"""Whatever order facts come in, however often, and wherever a crash cuts: the machine stays inside its table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import ids
from schemas.records import Boundary, GroupEvent, Record, SessionEvent, SessionState, Stage, Status
from schemas.records import GroupEventType as GroupFact
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator import core
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.groups import core as groups_core
from stream_processors.orchestrator.groups.outputs import outputs as group_outputs
from stream_processors.orchestrator.groups.row import GroupRow
from stream_processors.orchestrator.groups.states import GroupStage
from stream_processors.orchestrator.outputs import outputs
from stream_processors.orchestrator.row import SessionRow
from stream_processors.orchestrator.states import MOVES, NEW
from stream_processors.orchestrator.tick import Limits, Seen, tick
from tests.stream_processors.orchestrator.facts import SESSION, external, registered
from tests.stream_processors.orchestrator.groups.facts import group_registered

LIMITS = Limits(lease_ttl_ms=15_000, seal_grace_ms=30_000, end_grace_ms=20_000, command_grace_ms=10_000)
WORKERS = (("w1", "i1"), ("w1", "i2"), ("w2", "i1"))
STATUSES = (Status.NONE, Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED)


@dataclass(frozen=True)
class Draw:
    """A fact to be: of a kind, about the row as it stands (`fits`) or about anything."""

    kind: Fact
    fits: bool
    n: int

    def fact(self, row: SessionRow | None) -> SessionEvent:
        fields: dict[str, Any] = {}
        if self.fits and row is not None:
            lease_id = (
                next(iter(row.sealing), row.lease_id) if self.kind in (Fact.BUILT, Fact.SEAL_OVERDUE) else row.lease_id
            )
            step = 1 if self.kind is Fact.INIT_ASSIGNED else 0
            fields = {"attempt": row.attempt, "round": row.round + step, "lease_id": lease_id, "stage": row.stage}
            fields |= {"worker_id": row.worker_id, "incarnation": row.incarnation}
            if self.kind in (Fact.INIT_ASSIGNED, Fact.READY):
                fields |= dict(zip(("worker_id", "incarnation"), WORKERS[self.n % 3], strict=True))
        else:
            attempt, worker = 1 + self.n % 3, WORKERS[self.n % 3]
            fields = {"attempt": attempt, "round": self.n % 4, "worker_id": worker[0], "incarnation": worker[1]}
            fields |= {
                "lease_id": ids.lease_id(SESSION, attempt) if self.n % 2 else "",
                "stage": list(Stage)[self.n % 8],
            }
        fields |= {"status": STATUSES[self.n % 5], "boundary": list(Boundary)[self.n % 6], "writers": [1 + self.n % 2]}
        if self.kind is Fact.CANCEL_REQUESTED and self.n % 2:
            fields["details"] = {"early_stop": True}
        return SessionEvent(session_id=SESSION, type=self.kind, **fields)


DRAWS = st.lists(
    st.builds(Draw, st.sampled_from(list(Fact)), st.integers(0, 3).map(bool), st.integers(0, 119)), max_size=40
)


@dataclass
class Replayed:
    """A log of one session, taken fact by fact, with everything that each offset caused."""

    first: SessionEvent
    row: SessionRow | None = None
    log: list[SessionEvent] = field(default_factory=list)
    rows: list[SessionRow | None] = field(default_factory=list)
    caused: dict[int, list[Record]] = field(default_factory=dict)

    def take(self, fact: SessionEvent) -> None:
        """One more fact, as the agent takes it."""
        offset = len(self.log)
        self.log.append(fact)
        self.row = self.step(self.row, offset)
        self.rows.append(self.row)

    def step(self, row: SessionRow | None, offset: int) -> SessionRow | None:
        """The row after the fact at an offset; what it causes is what it caused whenever it was taken before."""
        fact = self.log[offset]
        if row is not None and offset <= row.version:
            due = outputs(row, fact, self.first) if offset == row.version else None
            after: SessionRow | None = row
        else:
            after = core.apply(row, fact, offset, (offset + 1) * 1000)
            due = None if after is None or after is row else outputs(after, fact, self.first)
        if due is not None:
            assert self.caused.setdefault(offset, due) == due
            assert after is not None
            assert SessionRow.from_bytes(after.to_bytes()) == after
            self.check(row, fact, after)
        return after

    def check(self, before: SessionRow | None, fact: SessionEvent, after: SessionRow) -> None:
        """The table knows the move, and an end stays the end."""
        if before is not None and before.version == after.version:
            return  # taken again
        assert (NEW if before is None else before.stage, fact.type) in MOVES
        if before is not None and before.stage is Stage.ENDED:
            books = {"sealing", "is_told", "version", "move", "moved_at"}
            same = {name: getattr(before, name) for name in books}
            assert replace(after, **same) == before

    @property
    def ends(self) -> list[SessionEvent]:
        """The terminal facts."""
        return [r for rs in self.caused.values() for r in rs if isinstance(r, SessionEvent) and r.type is Fact.ENDED]


def lived(draws: Sequence[Draw], first: SessionEvent) -> Replayed:
    """A session that met these facts; the grant that the orchestrator itself publishes comes back to it now and then."""
    replayed = Replayed(first)
    replayed.take(first)
    for draw in draws:
        replayed.take(draw.fact(replayed.row))
    return replayed


@given(DRAWS, st.booleans())
def test_facts_in_any_order_leave_the_machine_in_its_table(draws: list[Draw], is_external: bool) -> None:
    """Every change is a listed move; one terminal fact at most; versions of the state only grow."""
    replayed = lived(draws, external() if is_external else registered())
    assert len(replayed.ends) <= 1
    versions = [
        r.state_version for n in sorted(replayed.caused) for r in replayed.caused[n] if isinstance(r, SessionState)
    ]
    assert versions == sorted(set(versions))
    is_ended = replayed.row is not None and replayed.row.stage is Stage.ENDED
    assert is_ended == bool(replayed.ends)


@given(DRAWS, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=5))
def test_a_crash_anywhere_repeats_the_same_outputs(draws: list[Draw], crashes: list[tuple[int, int]]) -> None:
    """Back to a committed offset with a row that may be newer: what is taken again causes the same records, and ends alike."""
    replayed = lived(draws, registered())
    last = len(replayed.log) - 1
    for a, b in crashes:
        committed, kept = sorted((min(a, last), min(b, last)))
        row = replayed.rows[kept]
        for offset in range(committed, last + 1):
            row = replayed.step(row, offset)
        assert row == replayed.row
    assert len(replayed.ends) <= 1


@given(DRAWS)
def test_repeated_facts_change_nothing_more(draws: list[Draw]) -> None:
    """Each fact twice on the log (another delivery of a worker's, say): one end, the same as with each once."""
    once = lived(draws, registered())
    twice = Replayed(once.first)
    for fact in once.log:
        twice.take(fact)
        twice.take(fact)
    assert len(twice.ends) <= 1


@given(DRAWS)
def test_time_alone_ends_every_session(draws: list[Draw]) -> None:
    """Whatever happened, with no worker left to say anything, the timer's facts lead to the one end."""
    replayed = lived(draws, registered())
    now = 10**9
    for _ in range(100):
        assert replayed.row is not None
        facts = tick(Seen([replayed.row], FleetView(fresh_since=0), LIMITS, now))
        if not facts:
            break
        for fact in facts:
            replayed.take(fact)
        # What the orchestrator caused about the session comes back to it.
        for record in replayed.caused.get(len(replayed.log) - 1, []):
            if isinstance(record, SessionEvent):
                replayed.take(record)
        now += 10**9
    assert replayed.row is not None
    assert replayed.row.stage is Stage.ENDED
    assert not replayed.row.sealing
    assert len(replayed.ends) == 1


GROUP_DRAWS = st.lists(
    st.tuples(st.sampled_from(list(GroupFact)), st.integers(0, 4), st.booleans(), st.sampled_from(STATUSES[1:])),
    max_size=30,
)


def group_fact_of(kind: GroupFact, n: int, usable: bool, status: Status) -> GroupEvent:
    if kind is GroupFact.REGISTERED:
        return group_registered(4, min_usable=2)
    session_id = ids.session_id("g1", n) if kind is GroupFact.SCORED else ""
    reason = ("stale", "short", "policy", "", "task")[n]
    return GroupEvent(
        group_id="g1",
        type=kind,
        index=n,
        session_id=session_id,
        is_usable=usable,
        status=status,
        for_trainer="ab"[n % 2],
        reason=reason,
    )


# Called off before it was admitted, and yet enough of it is usable: its sessions aren't stopped a second time.
@example(
    [
        (GroupFact.CANCEL_REQUESTED, 0, False, Status.COMPLETED),
        *((GroupFact.SCORED, n, True, Status.COMPLETED) for n in (0, 1)),
    ],
    [],
)
@given(GROUP_DRAWS, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4))
def test_groups_close_once_and_repeat_their_outputs(
    draws: list[tuple[GroupFact, int, bool, Status]], crashes: list[tuple[int, int]]
) -> None:
    """Counts add up, one `closed` when every session counted, stops at most once, re-queues once per trainer; after a crash the same."""
    log = [group_registered(4, min_usable=2), *itertools.starmap(group_fact_of, draws)]
    caused: dict[int, list[list[Record]]] = {}

    def step(row: GroupRow | None, offset: int) -> GroupRow | None:
        if row is not None and offset <= row.version:
            if offset == row.version:
                assert caused[offset] == group_outputs(row, log[offset], log[0])
            return row
        after = groups_core.apply(row, log[offset], offset, (offset + 1) * 1000)
        if after is not None and after is not row:
            due = group_outputs(after, log[offset], log[0])
            assert caused.setdefault(offset, due) == due
            assert GroupRow.from_bytes(after.to_bytes()) == after
            assert sum(after.statuses.values()) == after.ended <= after.size
            assert after.usable & ~after.scored == 0
        return after

    rows: list[GroupRow | None] = []
    for offset in range(len(log)):
        rows.append(step(rows[-1] if rows else None, offset))
    for a, b in crashes:
        committed, kept = sorted((min(a, len(log) - 1), min(b, len(log) - 1)))
        row = rows[kept]
        for offset in range(committed, len(log)):
            row = step(row, offset)
        assert row == rows[-1]
    records = [r for batches in caused.values() for batch in batches for r in batch]
    final = rows[-1]
    assert final is not None
    closed = [r for r in records if isinstance(r, GroupEvent) and r.type is GroupFact.CLOSED]
    assert len(closed) == (final.stage is GroupStage.CLOSED)
    assert len({r.event_id for r in records}) == len(records)
    assert len([r for r in records if isinstance(r, SessionEvent) and r.type is Fact.REGISTERED]) in (0, 4)


@pytest.mark.parametrize("stage", [Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN])
def test_an_early_stop_spares_what_has_run(stage: Stage) -> None:
    """It saves what is still to be run; a session that waits for its grade, or whose run has just ended, goes on."""
    from tests.stream_processors.orchestrator.facts import row_in

    stop = SessionEvent(session_id=SESSION, type=Fact.CANCEL_REQUESTED, details={"early_stop": True}, error="enough")
    row = row_in(stage)
    after = core.apply(row, stop, 90, 90_000)
    assert (after is row) == (stage is Stage.POSTRUN)
    finished = replace(row, status=Status.COMPLETED)
    assert core.apply(finished, stop, 90, 90_000) is finished
