"""Shares with their uncertainty: known values, and what intervals must do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose.evaluation.statistics import bootstrap, difference, mean_pass_at, pass_at, share_of_tasks, wilson


@pytest.mark.parametrize(
    ("accepted", "attempted", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (504, 1638, 0.2858, 0.3305)],
)
def test_wilson(accepted: int, attempted: int, low: float, high: float) -> None:
    """Against values from tables."""
    found = wilson(accepted, attempted)
    assert found.value == accepted / attempted
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_estimate(pair: tuple[int, int]) -> None:
    """The interval lies in [0, 1] and holds the share."""
    found = wilson(*pair)
    assert 0.0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1.0


@pytest.mark.parametrize(
    ("k", "accepted", "attempted", "value"),
    [(1, 1, 4, 0.25), (2, 1, 4, 0.5), (4, 1, 4, 1.0), (2, 0, 4, 0.0), (2, 3, 4, 1.0), (5, 2, 10, 1 - 56 / 252)],
)
def test_pass_at_k(k: int, accepted: int, attempted: int, value: float) -> None:
    """One minus the chance to draw k failures."""
    assert pass_at(k, accepted, attempted) == pytest.approx(value)


def test_pass_at_k_needs_k() -> None:
    """A task with fewer samples says nothing about k; in a mean it doesn't count."""
    with pytest.raises(ValueError, match="needs 3 sessions, not 2"):
        pass_at(3, 1, 2)
    assert mean_pass_at(3, [(1, 2), (3, 3)]) == 1.0
    assert math.isnan(mean_pass_at(3, [(1, 2)]))


def test_which_interval() -> None:
    """One session a task: Wilson over tasks. More: the bootstrap over tasks, the same each time, and wider than if sessions were alone."""
    assert share_of_tasks(1, [(1, 1), (0, 1), (0, 1)]) == wilson(1, 3)
    clustered = [(8, 8)] * 5 + [(0, 8)] * 5
    found = share_of_tasks(1, clustered)
    assert found == share_of_tasks(1, clustered)
    alone = wilson(40, 80)
    assert found.value == alone.value == 0.5
    assert found.high - found.low > alone.high - alone.low


def test_bootstrap_of_nothing() -> None:
    """No task, no estimate."""
    assert math.isnan(bootstrap([], lambda _: math.nan).value)
    assert math.isnan(wilson(0, 0).value)
    assert wilson(0, 0).text == "-"


def test_differences_are_paired() -> None:
    """A gain on every task is clear, whatever the tasks' own spread; noise on both sides isn't."""
    first = [(0, 4), (1, 4), (2, 4), (3, 4)] * 4
    better = [(accepted + 1, 4) for accepted, _ in first]
    gain = difference(1, first, better)
    assert (gain.value, gain.low, gain.high) == (0.25, 0.25, 0.25)
    noise = difference(1, [(0, 1), (1, 1)] * 4, [(1, 1), (0, 1)] * 4)
    assert noise.value == 0.0
    assert noise.low < 0 < noise.high
    assert math.isnan(difference(2, [(0, 1)], [(1, 1)]).value)
