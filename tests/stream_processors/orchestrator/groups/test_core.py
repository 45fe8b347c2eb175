"""Lives of groups, fact by fact, and what each move causes."""

from __future__ import annotations

import itertools

import pytest

from schemas import ids
from schemas.records import GroupEvent, Record, SessionEvent, Status
from schemas.records import GroupEventType as Fact
from schemas.records import SessionEventType as SessionFact
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.groups.admission import SeenGroups, admissions
from stream_processors.orchestrator.groups.core import apply
from stream_processors.orchestrator.groups.ledger import Ledger
from stream_processors.orchestrator.groups.outputs import outputs
from stream_processors.orchestrator.groups.row import GroupRow
from stream_processors.orchestrator.groups.states import MOVES, GroupMove, GroupStage, move_for
from tests.stream_processors.orchestrator.groups.facts import (
    GROUP,
    TASK,
    admitted,
    group_fact,
    group_registered,
    play_group,
    requeue,
    scored,
)

AFTER: dict[tuple[GroupStage, Fact], GroupStage] = {
    (GroupStage.NEW, Fact.REGISTERED): GroupStage.WAITING,
    (GroupStage.WAITING, Fact.ADMITTED): GroupStage.OPEN,
    (GroupStage.WAITING, Fact.CANCEL_REQUESTED): GroupStage.OPEN,
    (GroupStage.OPEN, Fact.SCORED): GroupStage.OPEN,
    (GroupStage.OPEN, Fact.REQUEUE_REQUESTED): GroupStage.OPEN,
    (GroupStage.CLOSED, Fact.REQUEUE_REQUESTED): GroupStage.CLOSED,
}


def row_in(stage: GroupStage) -> GroupRow | None:
    """A group that came into a stage in the ordinary way."""
    facts = {
        GroupStage.NEW: [],
        GroupStage.WAITING: [group_registered()],
        GroupStage.OPEN: [group_registered(), admitted(), scored(1)],
        GroupStage.CLOSED: [group_registered(), admitted(), scored(1), scored(0), scored(2)],
    }[stage]
    return play_group(*facts) if facts else None


def matching(kind: Fact) -> GroupEvent:
    """A fact of this kind that concerns the group."""
    made = {Fact.REGISTERED: group_registered(), Fact.SCORED: scored(0), Fact.REQUEUE_REQUESTED: requeue()}
    return made.get(kind) or group_fact(kind)


@pytest.mark.parametrize(("stage", "kind"), list(itertools.product(GroupStage, Fact)), ids=str)
def test_a_fact_does_what_the_table_says_and_nothing_else(stage: GroupStage, kind: Fact) -> None:
    """A listed cell leads to its stage and notes the causing offset; any other leaves the very same row."""
    row = row_in(stage)
    after = apply(row, matching(kind), 50, 99_000)
    if (stage, kind) in AFTER:
        assert after is not None
        assert (after.stage, after.version, after.move) == (AFTER[stage, kind], 50, move_for(stage, kind))
        assert GroupRow.from_bytes(after.to_bytes()) == after
    else:
        assert after is row


def test_the_table_is_what_is_tested() -> None:
    """No legal cell is missing from the expectations above, and every move is used."""
    assert set(MOVES) == set(AFTER)
    assert set(MOVES.values()) == set(GroupMove)


class Life:
    """Feeds facts one by one and keeps what they cause."""

    def __init__(self, first: GroupEvent) -> None:
        self.first = first
        self.row: GroupRow | None = None
        self.offset = -1
        self.feed(first)

    def feed(self, *facts: GroupEvent) -> list[Record]:
        """What these facts cause."""
        caused: list[Record] = []
        for fact in facts:
            self.offset += 1
            after = apply(self.row, fact, self.offset, (self.offset + 1) * 1000)
            if after is not None and after is not self.row:
                self.row = after
                caused += [r for batch in outputs(after, fact, self.first) for r in batch]
        return caused


def groups(records: list[Record], kind: Fact) -> list[GroupEvent]:
    return [r for r in records if isinstance(r, GroupEvent) and r.type is kind]


def sessions(records: list[Record], kind: SessionFact) -> list[SessionEvent]:
    return [r for r in records if isinstance(r, SessionEvent) and r.type is kind]


def test_a_group_is_closed_by_its_last_result() -> None:
    """Each session counts once, in whatever order; the end names the counts and the place of the last result."""
    life = Life(group_registered())
    assert len(sessions(life.feed(admitted()), SessionFact.REGISTERED)) == 3
    assert life.feed(scored(2), scored(2), scored(0, usable=False, status=Status.TIMEOUT)) == []
    (closed,) = groups(life.feed(scored(1), scored(1)), Fact.CLOSED)
    assert closed.reason == "complete"
    assert closed.counts == {"size": 3, "ended": 3, "usable": 2, "completed": 2, "timeout": 1}
    assert (closed.partition, closed.offset, closed.task_id) == (2, 101, "t1")


def test_enough_usable_sessions_stop_the_others() -> None:
    """Those without a result are asked to end, once; each still has its end, and the last of them closes the group."""
    life = Life(group_registered(4, min_usable=2))
    life.feed(admitted())
    assert life.feed(scored(1), scored(3, usable=False)) == []
    stops = sessions(life.feed(scored(0)), SessionFact.CANCEL_REQUESTED)
    assert [s.session_id for s in stops] == [ids.session_id(GROUP, 2)]
    assert stops[0].details == {"early_stop": True}
    assert "min_usable 2" in stops[0].error
    (closed,) = groups(life.feed(scored(2, usable=False, status=Status.CANCELLED)), Fact.CLOSED)
    assert (closed.reason, closed.counts["usable"]) == ("min_usable", 2)


def test_one_more_usable_session_stops_nobody_again() -> None:
    """Results that were on their way count, and the cancels aren't repeated."""
    life = Life(group_registered(4, min_usable=1))
    life.feed(admitted())
    assert len(sessions(life.feed(scored(0)), SessionFact.CANCEL_REQUESTED)) == 3
    assert life.feed(scored(1)) == []


def test_the_last_usable_one_closes_without_stopping() -> None:
    """There is nobody left to stop."""
    life = Life(group_registered(2, min_usable=2))
    life.feed(admitted(), scored(0))
    caused = life.feed(scored(1))
    assert [r.type for r in caused if isinstance(r, GroupEvent)] == [Fact.CLOSED]
    assert len(caused) == 1


def test_a_group_cancelled_before_its_admission_still_has_all_its_results() -> None:
    """Its sessions are registered and cancelled, in this order: a sink counts them like any others."""
    life = Life(group_registered(2))
    caused = life.feed(group_fact(Fact.CANCEL_REQUESTED, reason="not needed"))
    assert [r.type for r in caused if isinstance(r, SessionEvent)] == [
        SessionFact.REGISTERED,
        SessionFact.REGISTERED,
        SessionFact.CANCEL_REQUESTED,
        SessionFact.CANCEL_REQUESTED,
    ]
    assert {s.error for s in sessions(caused, SessionFact.CANCEL_REQUESTED)} == {"not needed"}
    ends = [scored(n, usable=False, status=Status.CANCELLED) for n in range(2)]
    (closed,) = groups(life.feed(*ends), Fact.CLOSED)
    assert closed.reason == "cancelled"


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_stale_group_is_run_again_for_the_trainer_that_asks(is_closed: bool) -> None:
    """A new group with a derived id, which others skip; once per trainer; also when the report is faster than the end."""
    life = Life(group_registered())
    life.feed(admitted(), *(scored(n) for n in range(3 if is_closed else 2)))
    caused = life.feed(requeue("a"), requeue("a"), requeue("b", "short"))
    again = groups(caused, Fact.REGISTERED)
    assert [(g.group_id, g.for_trainer) for g in again] == [
        (ids.requeue_group_id(GROUP, "a"), "a"),
        (ids.requeue_group_id(GROUP, "b"), "b"),
    ]
    assert {(g.requeue_of, g.generation, g.size, g.task_id) for g in again} == {(GROUP, 1, 3, "t1")}
    assert again[0].task == life.first.task
    assert [(g.group_id, g.for_trainer, g.reason) for g in groups(caused, Fact.REQUEUED)] == [
        (GROUP, "a", "stale"),
        (GROUP, "b", "short"),
    ]
    assert len({r.event_id for r in caused}) == 4


def test_the_sessions_of_a_requeued_group_say_whose_they_are() -> None:
    """Their spec names the group and the trainer, so that sinks can tell."""
    life = Life(group_registered(1, group_id="g2", requeue_of=GROUP, for_trainer="a", generation=1))
    (session,) = sessions(life.feed(group_fact(Fact.ADMITTED, group_id="g2")), SessionFact.REGISTERED)
    assert session.spec is not None
    assert (session.spec.requeue_of, session.spec.for_trainer, session.spec.group_id) == (GROUP, "a", "g2")


@pytest.mark.parametrize(
    ("first", "wish"),
    [
        (group_registered(1, generation=1, requeue_of="g0", for_trainer="a"), requeue("a")),
        (group_registered(1, max_requeues=0), requeue("a")),
        (group_registered(1, max_requeues=5, generation=1, requeue_of="g0", for_trainer="a"), requeue("b")),
        (group_registered(1), requeue("a", "off_context")),
        (group_registered(1), requeue("")),
    ],
    ids=["used up", "none allowed", "another's", "another reason", "nobody"],
)
def test_what_is_not_run_again(first: GroupEvent, wish: GroupEvent) -> None:
    """At most max_requeues generations, only stale and short ones, and only for the trainer that it was for."""
    life = Life(first)
    life.feed(admitted(), scored(0))
    assert life.feed(wish) == []


def test_results_of_other_sizes_do_nothing() -> None:
    """An index that the group doesn't have is no session of it."""
    life = Life(group_registered(2))
    life.feed(admitted())
    assert life.feed(scored(2), scored(-1)) == []
    assert life.row is not None
    assert life.row.ended == 0


def test_a_group_from_before_groups_had_their_tasks_is_left_alone() -> None:
    """Its sessions were registered then; running them again would be wrong."""
    assert apply(None, group_registered(task=None), 0, 1000) is None


def test_ten_thousand_sessions_fit_in_a_row() -> None:
    """The row is written again for every result, so it stays small."""
    row = play_group(group_registered(10_000), admitted(), *(scored(n) for n in range(9_999)))
    assert row.ended == 9_999
    assert len(row.to_bytes()) < 8_000
    assert GroupRow.from_bytes(row.to_bytes()) == row


def test_a_group_keeps_the_labels_of_its_task_for_its_admission() -> None:
    """By them trainers choose; a patch in the metadata is none. A group that is run again has the same."""
    task = {**TASK, "metadata": {"data_set": "gsm8k", "patch": "x" * 1000}}
    row = play_group(group_registered(task=task))
    assert row.metadata == {"data_set": ["gsm8k"]}
    assert GroupRow.from_bytes(row.to_bytes()) == row
    (admission,) = admissions(SeenGroups([row], Controls(), Ledger(), 1, 5000))
    assert admission.metadata == {"data_set": ["gsm8k"]}
