"""What a trainer wants, and the name of each refusal."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from schemas.records import ScoredTrajectory, SessionSpec, Status
from schemas.wishes import GroupWish
from tests.trainer_sink.scored import scored, trace
from trainer_sink.filters import GroupFilter, SkipReason
from trainer_sink.staleness import UNVERSIONED, Staleness

SPEC = SessionSpec(task_id="t1", policy_id="p", harness="pi", group_size=2, metadata={"split": "train", "repo": "a/b"})


def test_without_wishes_everything_is_wanted() -> None:
    """The empty filter refuses nothing."""
    assert GroupFilter().refuses_spec(SPEC, "me") is None
    assert GroupFilter().refuses_content([scored("g", 0, 1)]) is None


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({"policy_id": "p"}, None),
        ({"policy_id": "q"}, SkipReason.POLICY),
        ({"task_ids": ["t1", "t2"]}, None),
        ({"task_ids": ["t2"]}, SkipReason.TASK),
        ({"task_ids": []}, SkipReason.TASK),
        ({"harness": "pi"}, None),
        ({"harness": ["claude_code", "pi"]}, None),
        ({"harness": "claude_code"}, SkipReason.HARNESS),
        ({"harness": "p*"}, None),
        ({"task_ids": ["t*"]}, None),
        ({"metadata": {"split": "train"}}, None),
        ({"metadata": {"split": ["dev", "tr*"], "repo": "a/b"}}, None),
        ({"metadata": {"split": "test"}}, SkipReason.METADATA),
        ({"metadata": {"data_set": "any"}}, SkipReason.METADATA),
    ],
)
def test_each_wish_has_its_reason(wishes: dict[str, Any], reason: SkipReason | None) -> None:
    """A group that doesn't fit is refused under the name of the wish."""
    assert GroupFilter.of(**wishes).refuses_spec(SPEC, "me") == reason


def test_a_group_re_run_for_another_trainer_is_refused() -> None:
    """A re-queue belongs to the trainer that asked; an export, which is none, takes it."""
    spec = SessionSpec(task_id="t1", for_trainer="other")
    assert GroupFilter().refuses_spec(spec, "me") is SkipReason.FOR_OTHER_TRAINER
    assert GroupFilter().refuses_spec(spec, "other") is None
    assert GroupFilter().refuses_spec(spec, None) is None


def test_off_context_traces_must_be_asked_for_by_name() -> None:
    """A spliced trace makes its group unwanted unless the trainer allows it."""
    group = [scored("g", 0, 1, traces=[trace(), trace(1, is_off_context=True)])]
    assert GroupFilter().refuses_content(group) is SkipReason.OFF_CONTEXT
    assert GroupFilter.of(allow_off_context=True).refuses_content(group) is None


def test_another_tokenizer_is_refused() -> None:
    """Ids of another tokenizer would corrupt training in silence; a failed session without a digest passes."""
    mine = GroupFilter.of(tokenizer_digest="d1")
    assert mine.refuses_content([scored("g", 0, 1, tokenizer_digest="d2")]) is SkipReason.TOKENIZER
    assert mine.refuses_content([scored("g", 0, 1, tokenizer_digest="d1"), scored("g", 1, 2)]) is None


def test_a_filter_can_be_announced() -> None:
    """Its JSON form is stable, whatever order its sets have."""
    text = json.dumps(GroupFilter.of(task_ids=["b", "a"], harness="pi").to_json())
    assert json.loads(text)["task_ids"] == ["a", "b"]
    assert json.loads(text)["harnesses"] == ["pi"]


def rewarded(*rewards: float | None) -> list[ScoredTrajectory]:
    """A group of usable sessions with these rewards; None: without a verdict."""
    return [scored("g", n, len(rewards), reward=reward) for n, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("wishes", "rewards", "reason"),
    [
        ({}, [None, None], None),
        ({"min_usable": 2}, [1.0, None, 0.0], None),
        ({"min_usable": 3}, [1.0, None, 0.0], SkipReason.SHORT),
        ({"min_rewarded": 2}, [1.0, None, math.nan], SkipReason.UNREWARDED),
        ({"min_rewarded": 2}, [1.0, None, 1.0], None),
        ({"require_variance": True}, [1.0, 1.0, None], SkipReason.NO_VARIANCE),
        ({"require_variance": True}, [1.0, 1.0 + 1e-12], SkipReason.NO_VARIANCE),
        ({"require_variance": True}, [1.0, 0.0, None], None),
        ({"require_variance": True}, [None], SkipReason.NO_VARIANCE),
        ({"min_mean_reward": 0.5}, [1.0, 0.0], None),
        ({"min_mean_reward": 0.6}, [1.0, 0.0], SkipReason.MEAN_REWARD),
        ({"max_mean_reward": 0.4}, [1.0, 0.0], SkipReason.MEAN_REWARD),
        ({"max_mean_reward": 0.4}, [None], SkipReason.MEAN_REWARD),
        ({"min_usable": 2, "require_variance": True}, [1.0, None], SkipReason.SHORT),
    ],
)
def test_a_whole_group_is_judged_by_counts(
    wishes: dict[str, Any], rewards: list[float | None], reason: SkipReason | None
) -> None:
    """What is short is named first: that alone is run again."""
    assert GroupFilter.of(**wishes).refuses_group(rewarded(*rewards)) == reason


def test_a_session_is_usable_as_the_orchestrator_counts_it() -> None:
    """Completed, with a verdict and a token to train: the headers by which a group stops early say the same."""
    sessions = [
        scored("g", 0, 4),
        scored("g", 1, 4, status=Status.TIMEOUT, traces=[trace()]),
        scored("g", 2, 4, reward=None),
        scored("g", 3, 4, traces=[]),
    ]
    assert [one.is_usable for one in sessions] == [True, False, False, False]
    assert GroupFilter.of(min_usable=1).refuses_group(sessions) is None
    assert GroupFilter.of(min_usable=2).refuses_group(sessions) is SkipReason.SHORT


@pytest.mark.parametrize(
    ("bound", "lags", "reason"),
    [
        (None, {9: 1, UNVERSIONED: 1}, None),
        (2, {0: 5, 2: 1}, None),
        (2, {0: 5, 3: 1}, SkipReason.STALE),
        (0, {0: 5}, None),
        (0, {}, None),
        (2, {0: 5, UNVERSIONED: 1}, SkipReason.UNVERSIONED),
        (2, {3: 5, UNVERSIONED: 1}, SkipReason.STALE),
    ],
)
def test_one_token_over_the_bound_makes_a_group_stale(
    bound: int | None, lags: dict[int, int], reason: SkipReason | None
) -> None:
    """Without a bound age is only reported."""
    assert GroupFilter.of(max_policy_lag=bound).refuses_age(Staleness(lags)) == reason


def test_side_calls_can_be_left_out() -> None:
    """Their traces go, the others keep their numbers, and the session counts as much as before; off-context ones go with them."""
    session = scored("g", 0, 1, traces=[trace(0, weight=0.5), trace(1, branch="aux", weight=0.5, is_off_context=True)])
    dropped, found = GroupFilter.of(side_calls="drop").without_side_calls(session)
    assert dropped.trajectory is not None
    assert [(t.index, t.branch, t.weight) for t in dropped.trajectory.traces] == [(0, "main", 1.0)]
    assert found == 1
    assert GroupFilter().without_side_calls(session) == (session, 1)
    assert GroupFilter().refuses_content([session]) is SkipReason.OFF_CONTEXT
    assert GroupFilter.of(side_calls="drop").refuses_content([session]) is None


@pytest.mark.parametrize(
    "wishes",
    [
        {"min_usable": -1},
        {"side_calls": "lose"},
        {"max_policy_lag": -1},
        {"min_mean_reward": 1, "max_mean_reward": 0},
        {"min_mean_reward": float("nan")},
    ],
)
def test_wishes_that_nothing_could_fulfil_are_refused(wishes: dict[str, Any]) -> None:
    """At once, not as a trainer that waits for ever."""
    with pytest.raises(ValueError, match=r"must be|no group could fit|is NaN"):
        GroupFilter.of(**wishes)


def test_the_orchestrator_reads_the_announced_filter_as_the_sink_does() -> None:
    """The part of a filter that is known before a group runs survives its JSON."""
    wishes = GroupFilter.of(
        policy_id="p", task_ids=["t*"], harness="pi", metadata={"split": "train"}, min_usable=2, max_policy_lag=1
    )
    announced = json.loads(json.dumps(wishes.to_json()))
    assert GroupWish.from_json(announced) == wishes.wish
    assert (announced["min_usable"], announced["max_policy_lag"], announced["side_calls"]) == (2, 1, "keep")
