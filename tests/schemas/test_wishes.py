"""A trainer's wishes about groups: the same verdict in its sink and in the orchestrator, over JSON too."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.wishes import GroupWish, Patterns, is_for, labels, trainer_of

GROUP: dict[str, Any] = {
    "policy_id": "p",
    "task_id": "gsm8k/train/17",
    "harness": "pi",
    "metadata": {"data_set": "gsm8k", "split": "train", "level": 3, "easy": True, "tags": ["math", "short"]},
}


def wish(**fields: Any) -> GroupWish:
    return GroupWish.from_json(fields)


@pytest.mark.parametrize(
    ("wishes", "refusal"),
    [
        ({}, None),
        ({"policy_id": "p"}, None),
        ({"policy_id": "q"}, "policy"),
        ({"task_ids": ["gsm8k/train/17"]}, None),
        ({"task_ids": ["gsm8k/*"]}, None),
        ({"task_ids": ["math/*", "gsm8k/train/1?"]}, None),
        ({"task_ids": ["GSM8K/*"]}, "task"),
        ({"task_ids": []}, "task"),
        ({"harnesses": ["pi", "shell"]}, None),
        ({"harnesses": ["claude_*"]}, "harness"),
        ({"metadata": {"split": ["train"]}}, None),
        ({"metadata": {"split": "train", "level": [3]}}, None),
        ({"metadata": {"easy": ["true"]}}, None),
        ({"metadata": {"tags": ["math"]}}, None),
        ({"metadata": {"data_set": ["gsm*"], "split": ["test", "dev"]}}, "metadata"),
        ({"metadata": {"repo": ["*"]}}, "metadata"),
    ],
)
def test_each_wish_has_its_verdict(wishes: dict[str, Any], refusal: str | None) -> None:
    """Sets, globs and labels; a label that the task lacks doesn't fit even a star."""
    assert wish(**wishes).refuses(**GROUP) == refusal
    again = GroupWish.from_json(json.loads(json.dumps(wish(**wishes).to_json())))
    assert again.refuses(**GROUP) == refusal
    assert again.refuses(**{**GROUP, "metadata": labels(GROUP["metadata"])}) == refusal


def test_an_id_with_glob_characters_is_also_itself() -> None:
    """`task[1]` as a glob means another text; named whole it still is wanted."""
    assert "task[1]" in Patterns(frozenset(["task[1]"]))


@pytest.mark.parametrize("announced", [None, [], "x", {"metadata": 3, "later": {"a": 1}}])
def test_what_is_no_wish_means_any(announced: Any) -> None:
    """A trainer of another release may announce what we don't know."""
    assert GroupWish.from_json(announced).refuses(**GROUP) is None


def test_content_in_the_metadata_is_no_label() -> None:
    """Mappings, long texts and empty lists stay out of every group's row."""
    metadata: dict[str, Any] = {"patch": "x" * 201, "nested": {"a": 1}, "none": None, "empty": [], "repo": "a/b"}
    assert labels(metadata) == {"repo": ["a/b"]}
    assert labels(["not", "a", "mapping"]) == {}


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.booleans())))
def test_labels_can_always_be_kept(metadata: dict[str, Any]) -> None:
    """Whatever a task says: the labels survive strict JSON, and are their own labels."""
    found = labels(metadata)
    assert labels(orjson.loads(orjson.dumps(found))) == found


def test_ranks_of_one_trainer_read_for_each_other() -> None:
    """A group that rank 0 had run again may land where rank 3 reads."""
    assert trainer_of("grpo.rank12") == "grpo"
    assert trainer_of("grpo") == "grpo"
    assert is_for("grpo.rank0", "grpo.rank3")
    assert is_for("", "anyone")
    assert not is_for("grpo.rank0", "ppo.rank0")
    assert not is_for("evaluation", "grpo")
