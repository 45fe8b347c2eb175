"""TRL's `rollout_func` result: its fields, its fixed number of rows, and credits that its own mean leaves alone."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trainer_sink.adapters.formats import check
from tests.trainer_sink.hand_made import cut, failed, forked, group, plain
from trainer_sink.adapters.trl import TooManyRowsError, credit, reward, rollout_func, rollout_of
from trainer_sink.credit import CreditRule
from trainer_sink.groups import Group
from trainer_sink.sequences import sequences_of

# trl 1.16.0, GRPOTrainer(rollout_func=…): three required keys, `env_mask`, and any others for the reward functions.
ROLLOUT: dict[str, Any] = {
    "prompt_ids": list[list[int]],
    "completion_ids": list[list[int]],
    "logprobs": list[list[float]],
    "env_mask": list[list[int]],
    "reward": list[float | None],
    "credit": list[float | None],
    "weight": list[float],
    "advantage": list[float],
    "session_id": list[str],
    "task_id": list[str],
    "weight_versions": list[list[str]],
}
RULE = CreditRule(advantage="mean_baseline")


def rollout(whole: Group, rule: CreditRule = RULE, rows: int = 6) -> dict[str, list[Any]]:
    return rollout_of([(whole, sequences_of(whole, rule))], num_generations=rows, filler_id=3)


def test_fields_types_and_lengths() -> None:
    """Every key has `num_generations` rows, and a row's lists are of one length."""
    result = rollout(group())
    check(ROLLOUT, result)
    assert {len(values) for values in result.values()} == {6}
    for ids, logprobs, mask in zip(result["completion_ids"], result["logprobs"], result["env_mask"], strict=True):
        assert len(ids) == len(logprobs) == len(mask) > 0


def test_values_by_hand() -> None:
    """Four traces, the failed session's place, and one row that only fills up."""
    result = rollout(group())
    assert result["prompt_ids"] == [[11, 12, 13], [11, 12, 13], [11, 12], [11, 12, 13, 14], [3], [3]]
    assert result["completion_ids"][0] == [21, 22, 31, 32, 23, 24]
    assert result["logprobs"][0] == [-0.125, -0.25, 0.0, 0.0, -0.625, -0.75]
    assert result["env_mask"] == [[1, 1, 0, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1], [1, 0], [0], [0]]
    assert result["reward"] == [1.0, 1.0, 0.0, 0.5, None, None]
    assert result["credit"] == [0.25, 0.25, -0.5, 0.0, None, None]
    assert result["weight_versions"][0] == ["4", "5"]
    assert result["session_id"][4] == group().scored[1].session_id


@pytest.mark.parametrize(
    "rule",
    [
        CreditRule(),
        CreditRule(advantage="leave_one_out"),
        CreditRule(advantage="leave_one_out", weighting="per_trace"),
        CreditRule(failed_reward=-1.0),
    ],
)
def test_credits_survive_the_trainer_s_own_mean(rule: CreditRule) -> None:
    """TRL subtracts the mean of a group's rows that have a reward: ours sum to 0, so it changes nothing."""
    result = rollout(group(), rule)
    given = [c for c in result["credit"] if c is not None]
    assert sum(given) == pytest.approx(0.0, abs=1e-6)
    wanted = [s.weight * s.advantage for s in sequences_of(group(), rule)]
    np.testing.assert_allclose(np.array(given)[: len(wanted)] - np.mean(given), wanted, atol=1e-6)


def test_a_graded_session_without_a_trace_counts_in_the_mean() -> None:
    """It has a row with its reward and no token."""
    graded = dataclasses.replace(failed(), reward=-1.0)
    result = rollout(dataclasses.replace(group(), scored=(graded, cut(), plain())), rows=3)
    assert (result["reward"], result["env_mask"][2]) == ([0.0, 0.5, -1.0], [0])
    assert result["credit"][2] == pytest.approx(-1.0 - (-0.5 / 3))
    strange = dataclasses.replace(failed(), reward=math.nan)
    result = rollout(dataclasses.replace(group(), scored=(strange, cut(), plain())), rows=3)
    assert result["reward"] == [0.0, 0.5, None]


def test_a_group_that_does_not_fit_is_an_error() -> None:
    """Rows are neither cut nor spread over two groups."""
    with pytest.raises(TooManyRowsError, match=r"has 5 rows \(4 traces of 4 sessions\) and num_generations is 4"):
        rollout(group(), rows=4)
    with pytest.raises(ValueError, match="no group"):
        rollout_of([], num_generations=4)


def trainer(num_generations: int) -> Any:
    return SimpleNamespace(
        num_generations=num_generations,
        num_generations_eval=1,
        model=SimpleNamespace(training=True),
        processing_class=SimpleNamespace(pad_token_id=7),
    )


def test_the_function_asks_for_as_many_groups_as_the_trainer_has_rows() -> None:
    """Twelve prompts of six generations are two groups; fillers are the tokenizer's padding."""
    asked: list[int] = []

    def take(count: int) -> list[Any]:
        asked.append(count)
        return [(group(), sequences_of(group(), RULE))] * count

    result = rollout_func(take)([""] * 12, trainer(6))
    assert (asked, len(result["prompt_ids"])) == ([2], 12)
    assert result["completion_ids"][5] == [7]
    with pytest.raises(ValueError, match="a group would be torn"):
        rollout_func(take)([""] * 8, trainer(6))
    with pytest.raises(ValueError, match="asks for 2 groups and got 0"):
        rollout_func(lambda _: [])([""] * 12, trainer(6))


def test_reward_functions_pass_on_what_the_rollouts_say() -> None:
    """They compute nothing, and say so when the rollouts came from elsewhere."""
    fields = {"reward": [1.0, None], "credit": [0.5, -0.5], "weight": [1, 1]}
    assert reward(prompts=[""] * 2, completions=["a", "b"], **fields) == [1.0, None]
    assert credit(prompts=[""] * 2, completions=["a", "b"], **fields) == [0.5, -0.5]
    with pytest.raises(ValueError, match="no 'credit'"):
        credit(prompts=[""], completions=["a"], reward=[1.0])


def test_one_fork_and_one_failure_fill_a_group_exactly() -> None:
    """Nothing is added where the rows suffice."""
    whole = dataclasses.replace(group(), scored=(forked(), failed(), plain()))
    result = rollout(whole, rows=4)
    assert [sum(mask) for mask in result["env_mask"]] == [4, 1, 1, 0]
