"""The assembler's core: when a lease closes, what counts as missing or late, and what its trajectory says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import ids
from schemas.codec import encode
from schemas.records import (
    CaptureGap,
    CompletionDelivery,
    CompletionRecord,
    Record,
    SessionEvent,
    SessionOpened,
    SessionSealed,
    SessionSpec,
    Trajectory,
)
from schemas.records import SessionEventType as Fact
from stream_processors.assembler.core import BadFactError, apply, assemble, build_trajectory, close, record_keys
from stream_processors.assembler.row import LeaseRow, SessionRow, WriterRow
from stream_processors.builders import Lease
from tests.stream_processors.helpers import LEASE, SESSION, E, call, delivered, delivery, row_of

SPEC = SessionSpec(task_id="t", group_id="g", policy_id="policy")


def event(kind: Fact, lease: str = LEASE, attempt: int = 1, **fields: Any) -> SessionEvent:
    return SessionEvent(session_id=SESSION, type=kind, lease_id=lease, attempt=attempt, **fields)


def opened(writer: int = 1, lease: str = LEASE, attempt: int = 1) -> SessionOpened:
    return SessionOpened(session_id=SESSION, lease_id=lease, attempt=attempt, writer=writer, spec=SPEC, opened_at=5)


def sealed_writer(last_seq: int, writer: int = 1, lease: str = LEASE) -> SessionSealed:
    return SessionSealed(session_id=SESSION, lease_id=lease, writer=writer, last_seq=last_seq)


class Assembler:
    """The core with its kept records in a dict, as the app drives it."""

    def __init__(self) -> None:
        self.row = SessionRow()
        self.kept: dict[str, Record] = {}
        self.built: list[Trajectory] = []
        self.late = 0

    def feed(self, *facts: Record) -> None:
        for fact in facts:
            step = apply(SessionRow.from_bytes(self.row.to_bytes()), fact)
            self.row = step.row
            self.late += step.is_late
            if step.keep:
                self.kept.setdefault(step.keep, fact)
            for lease_id in step.closing:
                keys = record_keys(self.row, SESSION, lease_id)
                kept = [self.kept[k] for k in keys if k in self.kept]
                calls = [f for f in kept if isinstance(f, CompletionRecord | CompletionDelivery)]
                trajectory = assemble(self.row, SESSION, lease_id, Lease(calls), 0)
                self.built.append(trajectory)
                self.row = close(self.row, lease_id, trajectory.content_digest)
                for k in keys:
                    self.kept.pop(k, None)


CALLS = delivered(call(1, [1, 2], [10, E]), call(2, [1, 2, 10, E, 50], [20, E]))
WHOLE: list[Record] = [opened(), *CALLS, sealed_writer(2), event(Fact.SEALED, writers=[1])]


def run(*facts: Record) -> Assembler:
    assembler = Assembler()
    assembler.feed(event(Fact.REGISTERED, lease="", spec=SPEC), *facts)
    return assembler


def test_a_lease_closes_when_it_is_sealed_and_whole() -> None:
    """The end's fact, the writer's seal and all its calls: one trajectory, with everything that identifies it."""
    (trajectory,) = run(*WHOLE).built
    assert trajectory.trajectory_id == ids.trajectory_id(SESSION, LEASE, "prefix_merging", "{}")
    assert (trajectory.task_id, trajectory.group_id, trajectory.policy_id) == ("t", "g", "policy")
    assert [row_of(t) for t in trajectory.traces] == [([1, 2], [10, E, 50, 20, E], "11011")]
    assert (trajectory.counts.calls, trajectory.counts.trained, trajectory.capture_incomplete) == (2, 2, [])
    assert trajectory.logprobs_mode == "raw"


@pytest.mark.parametrize("missing", range(len(WHOLE)))
def test_it_waits_for_each_of_these(missing: int) -> None:
    """Without any one call, seal or end the lease stays open (the opening and the delivery facts alone it can do without)."""
    facts = [f for n, f in enumerate(WHOLE) if n != missing]
    is_needed = not isinstance(WHOLE[missing], SessionOpened | CompletionDelivery)
    assert bool(run(*facts).built) != is_needed


@settings(max_examples=150, deadline=None)
@given(st.permutations(WHOLE), st.lists(st.sampled_from(WHOLE), max_size=4))
def test_order_and_repetition_change_nothing(order: list[Record], again: list[Record]) -> None:
    """Both topics in any order, anything repeated after its first time: one trajectory of the same content.

    Delivery facts precede their writer's seal, as they do on the log.
    """
    order = sorted(order, key=lambda f: isinstance(f, SessionSealed))
    assembler = run(*order, *again)
    assert len(assembler.built) == 1
    assert encode(assembler.built[0]).value == encode(run(*WHOLE).built[0]).value
    assert assembler.kept == {}
    assert assembler.late == 0


def test_no_writer_gives_an_empty_trajectory() -> None:
    """A lease that ended before a proxy was opened closes at once."""
    (trajectory,) = run(event(Fact.SEALED, writers=[])).built
    assert (trajectory.traces, trajectory.counts.calls, trajectory.lease_id) == ([], 0, LEASE)


def test_a_writer_that_opened_unnamed_is_waited_for() -> None:
    """The end lists writer 1; writer 2 is known from its opening."""
    assembler = run(opened(), opened(2), *CALLS, sealed_writer(2), event(Fact.SEALED, writers=[1]))
    assert assembler.built == []
    assembler.feed(*delivered(call(1, [1, 2, 10, E, 50, 20, E, 60], [30, E], writer=2)), sealed_writer(1, 2))
    assert assembler.built[0].counts.trained == 3


def test_overdue_says_what_is_missing() -> None:
    """At the end of the grace the lease closes with the holes by writer; what is there is built."""
    first, first_delivery, *_ = CALLS
    assembler = run(opened(), first, first_delivery, sealed_writer(3), event(Fact.SEALED, writers=[1, 2]))
    assert assembler.built == []
    assembler.feed(event(Fact.SEAL_OVERDUE, writers=[1, 2]))
    (trajectory,) = assembler.built
    assert trajectory.capture_incomplete == [CaptureGap(writer=1, after_seq=1), CaptureGap(writer=2, after_seq=0)]
    assert trajectory.counts.trained == 1


def test_overdue_names_no_attempt() -> None:
    """The session may be in its next attempt by then: the trajectory is that of the attempt whose lease it was."""
    assembler = run(opened(), *CALLS, event(Fact.SEALED, writers=[1]), event(Fact.SEAL_OVERDUE, attempt=2, writers=[1]))
    assert [t.attempt for t in assembler.built] == [1]
    assembler.feed(event(Fact.BUILT, attempt=3), sealed_writer(2))
    assert [t.attempt for t in assembler.built] == [1] * len(assembler.built)


def test_overdue_after_closing_changes_nothing() -> None:
    """The fact comes for every lease; a closed one ignores it."""
    assert len(run(*WHOLE, event(Fact.SEAL_OVERDUE, writers=[1])).built) == 1


def test_t38_late_calls_are_counted_and_never_a_second_trajectory() -> None:
    """T38: a call behind the close changes a number, once per call."""
    assembler = run(*WHOLE)
    late = call(3, [1, 2, 10, E, 50, 20, E, 60], [30, E])
    assembler.feed(late, delivery(3), late)
    assert (len(assembler.built), assembler.late, assembler.row.leases[LEASE].late) == (1, 1, ((1, 3),))
    assert assembler.kept == {}


def test_t80_a_superseded_lease_is_counted_and_never_trained() -> None:
    """T80: attempt 1's calls have a trajectory of their own that says why; attempt 2's holds only its own calls."""
    second = ids.lease_id(SESSION, 2)
    assembler = run(
        event(Fact.GRANTED),
        opened(),
        *CALLS,
        event(Fact.SEALED, writers=[1], details={"superseded": True}),
        event(Fact.GRANTED, lease=second, attempt=2),
        opened(lease=second, attempt=2),
        *delivered(call(1, [1, 2], [30, E], lease=second)),
        sealed_writer(1, lease=second),
        event(Fact.SEALED, lease=second, attempt=2, writers=[1]),
        sealed_writer(2),
    )
    winner, loser = assembler.built
    assert (winner.lease_id, winner.attempt, winner.counts.trained, winner.counts.calls) == (second, 2, 1, 1)
    assert (loser.lease_id, loser.traces, loser.counts.untrainable) == (LEASE, [], {"superseded_attempt": 2})
    assert winner.trajectory_id != loser.trajectory_id


def test_a_later_grant_supersedes_without_being_told() -> None:
    """Whatever order the facts come in, an open lease of an earlier attempt can't win."""
    second = ids.lease_id(SESSION, 2)
    assembler = run(event(Fact.GRANTED), event(Fact.GRANTED, lease=second, attempt=2), *WHOLE)
    assert assembler.built[0].counts.untrainable == {"superseded_attempt": 2}


def test_a_seal_after_the_expiry_ends_nothing() -> None:
    """A holder that seals when its lease has expired doesn't know that another attempt follows; the orchestrator says so."""
    whole = [opened(), *CALLS, event(Fact.LEASE_EXPIRED), event(Fact.SEALED, writers=[1]), sealed_writer(2)]
    assert run(*whole).built == []
    for superseded, traces in ((True, 0), (False, 1)):
        told = event(Fact.SEALED, writers=[1], details={"by": "orchestrator", "superseded": superseded})
        (built,) = run(*whole, told).built
        assert len(built.traces) == traces


def test_an_unknown_builder_is_a_reason() -> None:
    """The session still gets its trajectory: no traces, and every call says why."""
    assembler = Assembler()
    spec = replace(SPEC, builder="nonsense")
    assembler.feed(event(Fact.REGISTERED, lease="", spec=spec), *WHOLE)
    assert assembler.built[0].counts.untrainable == {"unknown_builder": 2}


@pytest.mark.parametrize(
    "bad",
    [call(0, [1], [2]), call(1, [1], [2], writer=0), call(1, [1], [2], lease=""), replace(delivery(1), call_seq=-1)],
    ids=["call 0", "writer 0", "no lease", "delivery -1"],
)
def test_facts_that_cannot_be_counted_are_refused(bad: Record) -> None:
    """They go to the dead letters instead of spoiling a row."""
    with pytest.raises(BadFactError):
        apply(SessionRow(), bad)


def test_the_content_digest_is_of_the_states() -> None:
    """Another disposition is another content; another time of building isn't."""
    row = run(*WHOLE[:-1]).row
    calls = [f for f in CALLS if isinstance(f, CompletionRecord | CompletionDelivery)]
    one, again = (assemble(row, SESSION, LEASE, Lease(calls), at) for at in (1, 2))
    other = assemble(row, SESSION, LEASE, Lease(calls[:-1]), 1)
    assert one.content_digest == again.content_digest != other.content_digest


def test_a_preview_of_a_running_session() -> None:
    """The same trajectory as at the seal, from the records so far."""
    completions = [f for f in CALLS if isinstance(f, CompletionRecord)]
    deliveries = [f for f in CALLS if isinstance(f, CompletionDelivery)]
    preview = build_trajectory(SESSION, LEASE, SPEC, completions, deliveries)
    assert preview.traces == run(*WHOLE).built[0].traces


def test_the_row_stays_small_and_survives_its_bytes() -> None:
    """A hundred calls in a row of a few hundred bytes; holes are kept exactly."""
    row = SessionRow().with_lease(LEASE, LeaseRow().with_writer(1, WriterRow()))
    for seq in itertools.chain(range(1, 101), (103,)):
        row = apply(row, call(seq, [1], [2])).row
    writer = row.leases[LEASE].writers[1]
    assert (writer.contiguous, writer.beyond, writer.top) == (100, (103,), 103)
    assert SessionRow.from_bytes(row.to_bytes()) == row
    assert len(row.to_bytes()) < 600
