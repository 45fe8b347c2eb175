"""The projection alone: records in any order, repeated, and what they leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compose.api.projection import Projection, ScoredHead, digest_of
from schemas import ids
from schemas.codec import encode
from schemas.records import (
    GroupEvent,
    GroupEventType,
    Record,
    SessionEvent,
    SessionEventType,
    Stage,
    Status,
    TaskRequest,
)
from schemas.task import TaskSpec
from tests.compose.api import facts
from tests.trainer_sink.scored import scored

TASK = TaskSpec.model_validate({"instruction": "hi", "harness": {"name": "shell"}, "task_id": "t"})
SPEC = TASK.model_dump(mode="json")


def life() -> list[tuple[Record, int]]:
    """One task of two sessions, as records with their offsets in their own partitions."""
    group_id = ids.group_id("t")
    records: list[tuple[Record, int]] = [
        (TaskRequest(task_id="t", policy_id="p", harness="shell", num_samples=2, submitted_at=5, spec=SPEC), 0),
        (GroupEvent(group_id=group_id, type=GroupEventType.REGISTERED, task_id="t", size=2), 0),
    ]
    for index in range(2):
        result = scored("t", index, 2, spec={"policy_id": "p"})
        common = {"session_id": result.session_id, "group_id": group_id, "task_id": "t"}
        records += [
            (SessionEvent(type=SessionEventType.REGISTERED, spec=result.spec, task=SPEC, at=5, **common), 0),
            (SessionEvent(type=SessionEventType.STARTED, **common), 1),
            (facts.state(result.session_id, "t", Stage.RUNNING, 1), 0),
            (facts.state(result.session_id, "t", Stage.ENDED, 2, status=Status.COMPLETED), 1),
            (result, index),
        ]
    return records


def applied(records: list[tuple[Record, int]]) -> Projection:
    """What they leave."""
    rows = Projection(max_sessions=100)
    for record, offset in records:
        if record.NAME == "scored_trajectory":
            head = ScoredHead.of_headers(dict(encode(record).headers))
            assert head is not None
            rows.take_scored(head, 0, offset)
        else:
            rows.take(record, 0, offset)
    return rows


@given(st.permutations(life()), st.lists(st.integers(0, len(life()) - 1), max_size=6))
def test_topics_have_no_order_between_them(records: list[tuple[Record, int]], again: list[int]) -> None:
    """However the topics are interleaved, and whatever comes twice: the same task, ended, with the same rows."""
    one, other = applied(life()), applied([*records, *(records[n] for n in again)])
    left, right = one.tasks["t"], other.tasks["t"]
    assert (right.status, right.digest, right.num_samples, right.submitted_at) == ("ended", digest_of(SPEC), 2, 5)
    assert [(s.session_id, s.index, s.stage, s.status, s.result) for s in left.sessions()] == [
        (s.session_id, s.index, s.stage, s.status, s.result) for s in right.sessions()
    ]


def test_the_id_is_no_part_of_what_is_asked_for() -> None:
    """Nor is the difference between what is said and what is a default."""
    other = {**SPEC, "task_id": "u", "priority": 0}
    assert digest_of(other) == digest_of({"instruction": "hi", "harness": {"name": "shell"}})
    assert digest_of({**SPEC, "priority": 1}) != digest_of(SPEC)


def test_a_task_whose_command_has_expired_is_known_by_its_sessions() -> None:
    """Its specification stands in the fact that registered them, so its id still means the same."""
    rows = applied(life()[1:])
    assert rows.known_digest("t") == digest_of(SPEC)
    assert rows.known_digest("u") is None


def test_a_group_that_is_run_again_keeps_its_task_running() -> None:
    """A re-queued generation has results of its own to wait for."""
    rows = applied(life())
    rows.take(GroupEvent(group_id="g2", type=GroupEventType.REGISTERED, task_id="t", size=2, generation=1), 0, 7)
    assert rows.tasks["t"].status == "running"
    assert rows.tasks["t"].groups["g2"].generation == 1


def test_what_runs_again_is_not_forgotten() -> None:
    """A task that was over and has a generation that runs stays in memory, also when there are too many sessions."""
    rows = Projection(max_sessions=2)
    for record, offset in life():
        if record.NAME == "scored_trajectory":
            head = ScoredHead.of_headers(dict(encode(record).headers))
            assert head is not None
            rows.take_scored(head, 0, offset)
        else:
            rows.take(record, 0, offset)
    rows.take(GroupEvent(group_id="g2", type=GroupEventType.REGISTERED, task_id="t", size=1, generation=1), 0, 7)
    rows.take(facts.state("s-again", "t", Stage.RUNNING, 1), 0, 8)
    assert (rows.evicted, rows.tasks["t"].status, len(rows.sessions)) == (0, "running", 3)


def test_headers_of_a_result_say_what_memory_keeps() -> None:
    """A result without a reward has none there either."""
    head = ScoredHead.of_headers(dict(encode(scored("t", 0, 2, reward=None, status=Status.FAILED)).headers))
    assert head is not None
    assert (head.status, head.reward, head.revision, head.task_id) == ("failed", None, 1, "t")
    assert ScoredHead.of_headers({}) is None
