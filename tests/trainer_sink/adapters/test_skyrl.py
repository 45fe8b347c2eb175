"""SkyRL's `GeneratorOutput`: the fields of the format, the rules that its validation checks, and values by hand."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest

from tests.trainer_sink.adapters.formats import check
from tests.trainer_sink.hand_made import cut, failed, group, plain
from trainer_sink.adapters.skyrl import TrajectoryID, output_of
from trainer_sink.credit import CreditRule
from trainer_sink.groups import Group
from trainer_sink.sequences import sequences_of

# SkyRL 0.3.0, skyrl/train/generators/base.py: GeneratorOutput.
GENERATOR_OUTPUT: dict[str, Any] = {
    "prompt_token_ids": list[list[int]],
    "response_ids": list[list[int]],
    "rewards": list[float] | list[list[float]],
    "loss_masks": list[list[int]],
    "stop_reasons": list[str] | None,
    "rollout_metrics": dict[str, Any] | None,
    "rollout_logprobs": list[list[float]] | None,
    "trajectory_ids": list[TrajectoryID] | None,
    "trajectory_generation_times": list[float] | None,
    "trajectory_time_splits": dict[str, list[float]] | None,
    "rollout_expert_indices": list[Any] | None,
    "is_last_step": list[bool] | None,
    "env_metrics": list[dict[str, Any]] | None,
    "pixel_values": list[Any] | None,
    "image_grid_thw": list[Any] | None,
}
RULE = CreditRule(advantage="mean_baseline")


def output(whole: Group, **options: Any) -> dict[str, Any]:
    return output_of([(whole, sequences_of(whole, RULE))], **options)


def without_fork() -> Group:
    return dataclasses.replace(group(), scored=(failed(), cut(), plain()))


def test_fields_and_types() -> None:
    """Both forms have every field of the format and none besides."""
    check(GENERATOR_OUTPUT, output(group()))
    check(GENERATOR_OUTPUT, output(without_fork()))


@pytest.mark.parametrize("whole", [group(), without_fork()])
def test_rows_are_as_long_as_their_responses(whole: Group) -> None:
    """Per row: ids, mask and logprobs agree; per output: every list has a value for each row."""
    result = output(whole)
    rows = len(result["response_ids"])
    for name, values in result.items():
        if isinstance(values, list):
            assert len(values) == rows, name
    for ids, mask, logprobs in zip(
        result["response_ids"], result["loss_masks"], result["rollout_logprobs"], strict=True
    ):
        assert len(ids) == len(mask) == len(logprobs) > 0


def test_a_fork_takes_the_step_wise_form() -> None:
    """Traces of a session stand together under one id, and only the last of them is marked."""
    result = output(group())
    ids = [t.to_string() for t in result["trajectory_ids"]]
    assert [t.rsplit("_", 1)[1] for t in ids] == ["0", "0", "1", "2", "3"]
    assert result["is_last_step"] == [False, True, True, True, True]
    for (before, last), (after, _) in pairwise(zip(ids, result["is_last_step"], strict=True)):
        assert last is (before != after)
    assert {t.instance_id for t in result["trajectory_ids"]} == {group().group_id}


def test_without_forks_one_row_is_one_session() -> None:
    """The plain form has no marks; it may be asked to have them, but a fork can't be asked to have none."""
    assert output(without_fork())["is_last_step"] is None
    assert output(without_fork(), step_wise=True)["is_last_step"] == [True] * 3
    with pytest.raises(ValueError, match="step_wise_trajectories=true"):
        output(group(), step_wise=False)
    with pytest.raises(ValueError, match="at least one group"):
        output_of([])


def test_values_by_hand() -> None:
    """Two traces of the fork, the failed session's place, the cut one, the plain one."""
    result = output(group(), filler_id=3)
    assert result["prompt_token_ids"] == [[11, 12, 13], [11, 12, 13], [3], [11, 12], [11, 12, 13, 14]]
    assert result["response_ids"][0] == [21, 22, 31, 32, 23, 24]
    assert result["loss_masks"] == [[1, 1, 0, 0, 1, 1], [0, 0, 0, 1], [0], [1, 1, 1], [1, 0]]
    assert result["rollout_logprobs"][0] == [-0.125, -0.25, 0.0, 0.0, -0.625, -0.75]
    assert result["stop_reasons"] == ["stop", "stop", "error", "length", "stop"]
    assert [m.get("weight") for m in result["env_metrics"]] == [0.5, 0.5, None, 1.0, 1.0]
    assert result["env_metrics"][0]["versions"] == ["4", "5"]
    assert result["rollout_metrics"] == {"polynya/sessions": 4, "polynya/traces": 4, "polynya/trained_tokens": 9}


def test_an_ungraded_session_leaves_the_baseline_where_it_is() -> None:
    """SkyRL wants a reward for each row: the mean of the graded sessions, 0.5, moves nothing."""
    rewards = output(group())["rewards"]
    assert rewards == [1.0, 1.0, 0.5, 0.0, 0.5]
    graded = dataclasses.replace(failed(), reward=-1.0)
    whole = dataclasses.replace(group(), scored=(graded, cut(), plain()))
    assert output(whole)["rewards"] == [-1.0, 0.0, 0.5]
    strange = dataclasses.replace(failed(), reward=math.nan)
    whole = dataclasses.replace(group(), scored=(strange, cut(), plain()))
    assert output(whole)["rewards"] == [0.25, 0.0, 0.5]
    assert output(group(), ungraded=0.0)["rewards"] == [1.0, 1.0, 0.0, 0.0, 0.5]


def test_the_trainer_s_own_class_of_ids() -> None:
    """Where SkyRL is installed its class is passed in."""

    @dataclasses.dataclass
    class Theirs:
        instance_id: str
        repetition_id: int

    assert all(isinstance(t, Theirs) for t in output(group(), trajectory_id=Theirs)["trajectory_ids"])
