"""The joiner's core: when a result is complete, what it holds, and how it is revised."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from schemas import ids
from schemas.arrays import pack_ids
from schemas.records import (
    Boundary,
    Record,
    Reward,
    ScoredTrajectory,
    SessionEvent,
    SessionSpec,
    Status,
    Trace,
    Trajectory,
)
from schemas.records import SessionEventType as Fact
from stream_processors.joiner.core import apply, is_complete, revisions, score
from stream_processors.joiner.row import SessionRow

SESSION, LEASE, OLD = "s1", "lease-2", "lease-1"
SPEC = SessionSpec(task_id="t", group_id="g", policy_id="p", builder_options={"b": 1, "a": 2})


def registered() -> SessionEvent:
    return SessionEvent(session_id=SESSION, type=Fact.REGISTERED, spec=SPEC)


def ended(**fields: Any) -> SessionEvent:
    base: dict[str, Any] = {
        "status": Status.COMPLETED,
        "winning_lease": LEASE,
        "expects_trajectory": True,
        "expects_reward": True,
        "attempt": 2,
        "at": 9,
    }
    return SessionEvent(session_id=SESSION, type=Fact.ENDED, **{**base, **fields})


def trajectory(lease: str = LEASE, traces: int = 2, digest: str = "d1", revision: int = 1) -> Trajectory:
    rows = [Trace(index=n, prompt_ids=pack_ids([n])) for n in range(traces)]
    return Trajectory(
        session_id=SESSION,
        lease_id=lease,
        traces=rows,
        content_digest=digest,
        revision=revision,
        tokenizer_digest="tok",
        logprobs_mode="raw",
    )


def reward(value: float = 1.0, **fields: Any) -> Reward:
    return Reward(**{"session_id": SESSION, "lease_id": LEASE, "value": value, "grader": "g", **fields})


class Joiner:
    """The core as the app drives it."""

    def __init__(self) -> None:
        self.row = SessionRow()
        self.kept: dict[tuple[str, int], Trajectory] = {}
        self.emitted: list[ScoredTrajectory] = []

    def feed(self, *facts: Record) -> None:
        for offset, fact in enumerate(facts):
            self.row = apply(SessionRow.from_bytes(self.row.to_bytes()), fact, offset)
            if isinstance(fact, Trajectory):
                self.kept.setdefault((fact.lease_id, fact.revision), fact)
            for view in revisions(self.row) if is_complete(self.row) else []:
                end = view.end
                assert end is not None
                kept = view.trajectories.get(end.winning_lease)
                found = self.kept[end.winning_lease, kept[0].revision] if kept and end.expects_trajectory else None
                scored = score(view, SESSION, found, 77)
                self.emitted.append(scored)
                self.row = replace(self.row, revision=view.revision, emitted=view.emitted)


def join(*facts: Record) -> list[ScoredTrajectory]:
    joiner = Joiner()
    joiner.feed(*facts)
    return joiner.emitted


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_result_is_emitted_once_all_three_are_in(order: tuple[int, ...]) -> None:
    """End, trajectory and reward in any order, each twice: one first revision."""
    facts: list[Record] = [ended(), trajectory(), reward(0.5)]
    scored = join(registered(), *(facts[n] for n in order), *facts)
    assert len(scored) == 1
    one = scored[0]
    assert (one.revision, one.reward, one.status, one.attempt, one.ended_at, one.scored_at) == (
        1,
        0.5,
        "completed",
        2,
        9,
        77,
    )
    assert (one.group_id, one.task_id, one.policy_id, one.lease_id) == ("g", "t", "p", LEASE)
    assert one.spec == SPEC
    assert (one.tokenizer_digest, one.logprobs_mode) == ("tok", "raw")


def test_the_trajectory_id_is_known_in_advance() -> None:
    """From session, lease, builder and canonical options, also without a trajectory or a lease."""
    options = '{"a":2,"b":1}'
    assert join(registered(), ended(), trajectory(), reward())[0].trajectory_id == ids.trajectory_id(
        SESSION, LEASE, "prefix_merging", options
    )
    unleased = ended(winning_lease="", expects_trajectory=False, expects_reward=False, status=Status.FAILED)
    assert join(registered(), unleased)[0].trajectory_id == ids.trajectory_id(SESSION, "", "prefix_merging", options)


def test_a_failed_session_is_a_result_without_traces() -> None:
    """Status and boundary are what a group needs to be complete."""
    (scored,) = join(
        registered(),
        ended(
            status=Status.FAILED,
            boundary=Boundary.SANDBOX,
            error="no image",
            winning_lease="",
            expects_trajectory=False,
            expects_reward=False,
        ),
    )
    assert (scored.status, scored.boundary, scored.error) == ("failed", "sandbox", "no image")
    assert (scored.trajectory, scored.reward, scored.rewards) == (None, None, [])


def test_only_the_winning_lease_counts() -> None:
    """The trajectory and the reward of a superseded attempt are neither waited for nor used."""
    facts = [registered(), ended(), trajectory(OLD, digest="old"), reward(9.0, lease_id=OLD)]
    assert join(*facts) == []
    (scored,) = join(*facts, trajectory(), reward(0.5))
    assert (scored.reward, len(scored.rewards)) == (0.5, 1)
    assert scored.trajectory is not None
    assert scored.trajectory.content_digest == "d1"


def test_t26_credit_is_shared_by_the_traces() -> None:
    """Weight one over the traces; the outcome reward on each."""
    (scored,) = join(registered(), ended(), trajectory(traces=4), reward(0.5))
    assert scored.trajectory is not None
    assert [(t.weight, t.reward) for t in scored.trajectory.traces] == [(0.25, 0.5)] * 4


def test_rewards_per_trace() -> None:
    """One value per trace where the grader gave them; a wrong number of them is said, and the outcome used."""
    (scored,) = join(registered(), ended(), trajectory(), reward(0.5, trace_rewards=[0.1, 0.9]))
    assert scored.trajectory is not None
    assert [t.reward for t in scored.trajectory.traces] == [0.1, 0.9]
    (scored,) = join(registered(), ended(), trajectory(), reward(0.5, trace_rewards=[0.1]))
    assert scored.trajectory is not None
    assert [t.reward for t in scored.trajectory.traces] == [0.5, 0.5]
    assert "1 values for 2 traces" in scored.error


def test_named_rewards_are_waited_for() -> None:
    """The end names two: the result comes with the second, and the first named one is the outcome."""
    end = ended(rewards=["tests", "style"])
    partial = [registered(), end, trajectory(), reward(0.2, name="style")]
    assert join(*partial) == []
    (scored,) = join(*partial, reward(1.0, name="tests"))
    assert (scored.reward, scored.revision, {r.name: r.value for r in scored.rewards}) == (
        1.0,
        1,
        {"tests": 1.0, "style": 0.2},
    )


def test_t76_a_later_verdict_is_a_revision() -> None:
    """Another value is revision 2 with another digest; the same verdict again is nothing."""
    first, second = join(
        registered(),
        ended(),
        trajectory(),
        reward(0.0),
        reward(0.0),
        reward(1.0, grader_version="2"),
        reward(1.0, grader_version="2"),
        reward(0.0),
    )
    assert (first.revision, first.reward, second.revision, second.reward) == (1, 0.0, 2, 1.0)
    assert first.trajectory_id == second.trajectory_id
    assert first.content_digest != second.content_digest


def test_a_later_grading_may_return_to_an_earlier_verdict() -> None:
    """Gradings made later have names: each change of mind is a revision, with the rewards per trace that it gives."""
    scored = join(
        registered(),
        ended(),
        trajectory(),
        reward(0.0),
        reward(1.0, run="second", trace_rewards=[0.5, 0.25]),
        reward(1.0, run="second", trace_rewards=[0.5, 0.25]),
        reward(0.0, run="third"),
    )
    assert [(s.revision, s.reward) for s in scored] == [(1, 0.0), (2, 1.0), (3, 0.0)]
    traces = [[t.reward for t in s.trajectory.traces] for s in scored if s.trajectory]
    assert traces == [[0.0, 0.0], [0.5, 0.25], [0.0, 0.0]]


def test_an_unexpected_verdict_is_a_revision_too() -> None:
    """A session that ended without a grade can be graded later."""
    first, second = join(registered(), ended(expects_reward=False), trajectory(), reward(1.0))
    assert (first.revision, first.reward, second.revision, second.reward) == (1, None, 2, 1.0)


def test_one_number_never_means_two_contents() -> None:
    """A restart may read the topics in another order than before: revisions follow the log's verdicts, not emissions."""
    before = join(registered(), ended(), trajectory(), reward(0.0), reward(1.0, grader_version="2"))
    after = join(registered(), trajectory(), reward(0.0), reward(1.0, grader_version="2"), ended())
    assert [(s.revision, s.reward) for s in before] == [(1, 0.0), (2, 1.0)]
    assert after == before


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_session_is_first_met_in_revision_1(order: tuple[int, ...]) -> None:
    """A verdict that the end doesn't expect comes after it, also when it is there first.

    Its worker may have died between reward and `graded`; and a trainer takes a later revision of a group that it doesn't
    know for one of a group that it has trained.
    """
    lost = ended(expects_reward=False, status=Status.FAILED, boundary=Boundary.EVALUATOR)
    facts: list[Record] = [reward(1.0), trajectory(), lost]
    scored = join(registered(), *(facts[n] for n in order))
    assert [(s.revision, s.reward) for s in scored] == [(1, None), (2, 1.0)]


def test_a_verdict_repeated_before_another_that_is_waited_for() -> None:
    """Revision 1 is what first satisfied the end, however many verdicts that took."""
    facts = [reward(0.0, name="style"), reward(0.5, name="style"), reward(1.0, name="tests")]
    (scored,) = join(registered(), trajectory(), *facts, ended(rewards=["tests", "style"]))
    assert (scored.revision, {r.name: r.value for r in scored.rewards}) == (1, {"style": 0.5, "tests": 1.0})


def test_a_second_content_of_a_trajectory_changes_nothing() -> None:
    """The first stays: no other content under the same id in silence."""
    assert len(join(registered(), ended(), trajectory(), reward(), trajectory(digest="d2"))) == 1


def test_t38_a_revised_trajectory_is_a_revision_of_the_result() -> None:
    """T38: calls came late; the new result replaces the old one under the same id, and verdicts go on counting in it."""
    late = trajectory(traces=3, digest="d2", revision=2)
    first, second, third = join(registered(), ended(), trajectory(), reward(), late, late, reward(0.5))
    assert [(s.revision, s.reward, len(s.trajectory.traces)) for s in (first, second, third) if s.trajectory] == [
        (1, 1.0, 2),
        (1001, 1.0, 3),
        (1002, 0.5, 3),
    ]
    assert len({s.trajectory_id for s in (first, second, third)}) == 1
    assert len({s.content_digest for s in (first, second, third)}) == 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_t38_numbers_do_not_depend_on_the_order_of_the_topics(order: tuple[int, ...]) -> None:
    """Whatever order a restart reads the topics in, a number has one content, the first is 1, the last the same."""
    facts: list[Record] = [ended(), reward(0.0), trajectory(), trajectory(traces=3, digest="d2", revision=2)]
    if order.index(2) > order.index(3):
        return  # one topic: its records keep their order
    scored = join(registered(), *(facts[n] for n in order), reward(1.0))
    assert scored[0].revision == 1
    assert (scored[-1].revision, scored[-1].reward) == (1002, 1.0)
    expected = {1: (0.0, 2), 2: (1.0, 2), 1001: (0.0, 3), 1002: (1.0, 3)}
    for one in scored:
        assert one.trajectory is not None
        assert (one.reward, len(one.trajectory.traces)) == expected[one.revision]


def test_there_is_one_end() -> None:
    """A repeated or later terminal fact doesn't change what was told."""
    (scored,) = join(registered(), ended(), trajectory(), reward(), ended(status=Status.FAILED))
    assert scored.status == "completed"


def test_a_row_survives_its_bytes() -> None:
    """The table's value holds everything."""
    joiner = Joiner()
    joiner.feed(registered(), ended(rewards=["reward"]), trajectory(), reward(0.5, trace_rewards=[0.1, 0.9]))
    assert SessionRow.from_bytes(joiner.row.to_bytes()) == joiner.row
    assert joiner.row.revision == 1
