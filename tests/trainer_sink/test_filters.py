"""What a trainer wants, and the name of each refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.records import SessionSpec
from tests.trainer_sink.scored import scored, trace
from trainer_sink.filters import GroupFilter, SkipReason

SPEC = SessionSpec(task_id="t1", policy_id="p", harness="pi", group_size=2)


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
