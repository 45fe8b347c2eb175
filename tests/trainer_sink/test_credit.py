"""Credit: weights and advantages against hand-computed values, and what must hold for any rewards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_sink.credit import Credit, CreditRule, RewardError, ZeroVarianceError, assign, tis_weights

REWARD = st.floats(-10, 10).map(lambda r: round(r, 3))
GROUP = st.lists(st.lists(REWARD, min_size=1, max_size=4), min_size=2, max_size=6)
BROADCAST = st.lists(st.tuples(REWARD, st.integers(1, 4)).map(lambda p: [p[0]] * p[1]), min_size=2, max_size=6)


def flat(values: tuple[tuple[float, ...], ...]) -> list[float]:
    return [v for session in values for v in session]


def test_group_norm_by_hand() -> None:
    """Rewards 1, 0, 0, 1: mean 0.5, std of the sample 0.57735; a fork's traces share their session's advantage."""
    credit = assign([[1.0], [0.0], [0.0], [1.0, 1.0]], CreditRule(std_epsilon=0.0))
    up = 0.5 / math.sqrt(1 / 3)
    assert (credit.mean, credit.std) == (0.5, pytest.approx(math.sqrt(1 / 3)))
    assert credit.advantages == (
        (pytest.approx(up),),
        (pytest.approx(-up),),
        (pytest.approx(-up),),
        (pytest.approx(up), pytest.approx(up)),
    )
    assert credit.weights == ((1.0,), (1.0,), (1.0,), (0.5, 0.5))


def test_population_deviation_and_epsilon() -> None:
    """`ddof=0` divides by n; the epsilon is added to the deviation, not to the variance."""
    credit = assign([[1.0], [0.0]], CreditRule(ddof=0, std_epsilon=0.5))
    assert credit.std == 0.5
    assert credit.advantages == ((0.5,), (-0.5,))


def test_leave_one_out_by_hand() -> None:
    """Each is compared with the others' mean: 3 against (0 + 0) / 2, 0 against (3 + 0) / 2."""
    credit = assign([[3.0], [0.0], [0.0]], CreditRule(advantage="leave_one_out"))
    assert credit.advantages == ((3.0,), (-1.5,), (-1.5,))


def test_traces_with_rewards_of_their_own() -> None:
    """A session's mean stands in the others' baseline, each of its traces is compared by itself."""
    credit = assign([[1.0, 0.0], [0.25]], CreditRule(advantage="leave_one_out"))
    assert credit.advantages == ((0.75, -0.25), (-0.25,))
    assert assign([[1.0, 0.0], [0.5]], CreditRule(advantage="mean_baseline")).mean == 0.5


def test_traces_as_samples_weigh_a_fragmented_session_more() -> None:
    """`per_trace` is the published baseline: three traces of one session move the mean three times as far."""
    rewards = [[1.0, 1.0, 1.0], [0.0]]
    assert assign(rewards, CreditRule(weighting="per_session")).mean == 0.5
    per_trace = assign(rewards, CreditRule(weighting="per_trace"))
    assert (per_trace.mean, per_trace.weights) == (0.75, ((1.0, 1.0, 1.0), (1.0,)))
    assert per_trace.std == pytest.approx(0.5)


def test_no_advantage_is_the_reward() -> None:
    """`none` passes rewards through, equal ones, too."""
    credit = assign([[2.0], [2.0]], CreditRule(advantage="none", zero_variance="drop"))
    assert (credit.advantages, credit.is_dropped) == (((2.0,), (2.0,)), False)


@pytest.mark.parametrize("advantage", ["group_norm", "leave_one_out", "mean_baseline"])
def test_equal_rewards_are_dropped_kept_or_refused_by_name(advantage: str) -> None:
    """A group without variance is counted in any case; kept ones have advantage 0, never a division's noise."""
    rewards = [[0.1 + 0.2], [0.3], [0.3, 0.3]]

    def run(zero_variance: str) -> Credit:
        return assign(rewards, CreditRule(advantage=advantage, zero_variance=zero_variance), what="group g")  # type: ignore[arg-type]

    assert (run("keep").is_dropped, flat(run("keep").advantages)) == (False, [0.0] * 4)
    assert (run("drop").is_dropped, run("drop").counts["zero_variance"]) == (True, 1)
    with pytest.raises(ZeroVarianceError, match=r"group g have reward 0\.3"):
        run("error")


def test_a_session_alone_learns_nothing_from_a_comparison() -> None:
    """A group of one has nothing to leave out and no deviation."""
    credit = assign([[1.0, 0.0]], CreditRule(advantage="leave_one_out"))
    assert (flat(credit.advantages), credit.counts["alone"]) == ([0.0, 0.0], 1)
    assert assign([[1.0]], CreditRule()).std == 0.0
    assert assign([], CreditRule()).advantages == ()


def test_what_credit_refuses() -> None:
    """A session without a reward, one that isn't finite, and rules that mean nothing."""
    with pytest.raises(RewardError, match="session 1 of the group has no reward"):
        assign([[1.0], []])
    with pytest.raises(RewardError, match="isn't finite"):
        assign([[1.0], [math.nan]])
    with pytest.raises(ValueError, match="std_epsilon"):
        CreditRule(std_epsilon=-1)
    with pytest.raises(ValueError, match="failed_reward"):
        CreditRule(failed_reward=math.inf)


@settings(deadline=None)
@given(GROUP)
def test_weights_of_a_session_sum_to_one(rewards: list[list[float]]) -> None:
    """However a session is fragmented, it counts once; by traces, as often as it has traces."""
    for session in assign(rewards).weights:
        assert sum(session) == pytest.approx(1.0)
    assert flat(assign(rewards, CreditRule(weighting="per_trace")).weights) == [1.0] * sum(map(len, rewards))


@settings(deadline=None)
@given(GROUP, st.sampled_from(["group_norm", "leave_one_out", "mean_baseline"]))
def test_weighted_advantages_sum_to_zero(rewards: list[list[float]], advantage: str) -> None:
    """A comparison within a group neither gives nor takes: what one gains, the others lose."""
    credit = assign(rewards, CreditRule(advantage=advantage))  # type: ignore[arg-type]
    total = np.dot(flat(credit.weights), flat(credit.advantages))
    assert total == pytest.approx(0.0, abs=1e-6 * max(1.0, np.abs(flat(credit.advantages)).max()))


@settings(deadline=None)
@given(BROADCAST, REWARD, st.floats(0.1, 10).map(lambda k: round(k, 2)))
def test_normalised_advantages_ignore_shift_and_scale(rewards: list[list[float]], shift: float, scale: float) -> None:
    """Only the order and the distances of rewards matter, not their unit."""
    rule = CreditRule(std_epsilon=0.0)
    before = assign(rewards, rule)
    after = assign([[r * scale + shift for r in session] for session in rewards], rule)
    if before.std > 1e-3:
        assert flat(after.advantages) == pytest.approx(flat(before.advantages), rel=1e-6, abs=1e-6)


@settings(deadline=None)
@given(BROADCAST)
def test_splitting_a_session_changes_nothing_per_session(rewards: list[list[float]]) -> None:
    """With 1 / traces, the advantages are those of the same sessions kept whole: numpy's mean and std say which."""
    values = np.array([session[0] for session in rewards])
    credit = assign(rewards, CreditRule(std_epsilon=1e-6))
    assert credit.mean == pytest.approx(values.mean(), abs=1e-9)
    assert credit.std == pytest.approx(values.std(ddof=1), abs=1e-9)


def test_importance_weights_by_hand() -> None:
    """Ratios 1, 2 and 0.5; the one above the cap is cut, a masked token has none whatever stands there."""
    new = np.log(np.array([[0.5, 0.8, 0.1, 0.9]]))
    old = np.log(np.array([[0.5, 0.4, 0.2, 0.01]]))
    mask = np.array([[1, 1, 1, 0]], np.uint8)
    assert tis_weights(new, old, mask, cap=4.0).tolist() == [
        [pytest.approx(1.0), pytest.approx(2.0), pytest.approx(0.5), 0.0]
    ]
    assert tis_weights(new, old, mask, cap=1.5)[0, 1] == pytest.approx(1.5)
    masked = np.where(mask, old, np.nan)
    assert np.isfinite(tis_weights(new, masked, mask)).all()


def test_importance_weights_of_impossible_tokens_are_refused() -> None:
    """Shapes that differ, a cap of nothing, a trained token without a logprob; a huge ratio is only cut."""
    one = np.zeros(3)
    mask = np.ones(3, np.uint8)
    assert tis_weights(one + 5000.0, one, mask, cap=2.0).tolist() == [pytest.approx(2.0)] * 3
    with pytest.raises(ValueError, match="must have one shape"):
        tis_weights(one, np.zeros(2), mask)
    with pytest.raises(ValueError, match="cap is 0"):
        tis_weights(one, one, mask, cap=0.0)
    with pytest.raises(ValueError, match="1 trained tokens have a logprob that isn't finite"):
        tis_weights(one, np.array([0.0, -np.inf, 0.0]), mask)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0), st.integers(0, 1)), min_size=1, max_size=20),
    st.floats(0.1, 10),
)
def test_importance_weights_stand_between_zero_and_the_cap(tokens: list[tuple[float, float, int]], cap: float) -> None:
    """Trained tokens weigh more than nothing and at most the cap; on-policy ones weigh 1 or the cap."""
    new, old, mask = (np.array(column) for column in zip(*tokens, strict=True))
    weights = tis_weights(new, old, mask, cap)
    assert ((weights > 0) == (mask == 1)).all()
    assert (weights <= cap * (1 + 1e-9)).all()
    np.testing.assert_allclose(tis_weights(new, new, mask, cap), np.minimum(1.0, cap) * mask)
