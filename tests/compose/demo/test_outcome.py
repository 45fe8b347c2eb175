"""What the demo promises, and how it says that a promise wasn't kept."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from compose.demo.outcome import Evaluation, Outcome, bar, forks, gain, has_gained, lost
from schemas.records import Counts, ScoredTrajectory, Status, Trace, Trajectory

SOUND = Outcome(
    harness="pi",
    harness_version="1",
    model_digest="d",
    seed=0,
    baseline=0.4,
    rewards=(0.4, 0.5, 0.7, 0.7, 0.7, 0.7, 0.7),
    evaluation_steps=1,
    gain=0.3,
    reached_after_s=60.0,
    seconds=80.0,
    sessions=300,
    forks=0,
    lost=0,
    max_logprob_diff=2e-6,
    versions=("1", "2", "3", "9", "10"),
    trained=Evaluation(0.4, 0.3, 48),
    held_out_before=Evaluation(0.4, 0.3, 24),
    held_out_after=Evaluation(0.8, 0.7, 24),
)


def test_a_sound_run_has_no_failing_and_is_plain_json() -> None:
    """Versions are compared as numbers: 10 comes after 9."""
    assert SOUND.failings() == []
    assert json.loads(json.dumps(SOUND.to_json()))["held_out_after"]["reward"] == 0.8


def test_each_broken_promise_is_named() -> None:
    """Gain, lost sessions, forks, logprobs and versions, each on its own."""
    broken: dict[str, dict[str, Any]] = {
        "gain": {"gain": 0.2},
        "lost": {"lost": 1},
        "forked": {"forks": 2},
        "logprobs": {"max_logprob_diff": 2e-4},
        "versions": {"versions": ("1", "1")},
    }
    for word, change in broken.items():
        (said,) = dataclasses.replace(SOUND, **change).failings()
        assert word in said
    assert dataclasses.replace(SOUND, gain=0.0).failings(is_bounded=True) == []


def test_the_gain_is_that_of_the_last_five_steps() -> None:
    """Four high steps are not enough; five are, whatever came before them."""
    assert gain([0.0, 0.5, 0.5, 0.5, 0.5, 0.5], 0.25) == 0.25
    assert gain([], 0.25) == 0.0
    assert not has_gained([1.0] * 4, 0.25, 0)
    assert has_gained([0.0] * 3 + [0.5] * 5, 0.25, 0)
    assert not has_gained([0.5] * 4 + [0.4] * 5, 0.25, 0)


def test_the_evaluations_steps_never_count_for_the_gain() -> None:
    """Their sessions are the baseline: the window is filled by the steps after them alone."""
    assert has_gained([0.3] * 2 + [0.5] * 5, 0.25, 2)
    assert not has_gained([1.0] * 4 + [0.5] * 4, 0.25, 4)
    assert not has_gained([1.0] * 2 + [0.4] * 5, 0.25, 2)


def scored(status: Status = Status.COMPLETED, *, traces: int = 1, tokens: int = 9) -> ScoredTrajectory:
    """A session's result with so many traces and trainable tokens."""
    trajectory = Trajectory(traces=[Trace(index=n) for n in range(traces)], counts=Counts(trainable_tokens=tokens))
    return ScoredTrajectory(status=status, trajectory=trajectory, reward=0.2)


def test_forks_and_lost_sessions_are_counted_from_the_results() -> None:
    """A second trace is a fork; a failed session, one without a trajectory and one without trained tokens are lost."""
    failed, empty, nothing = (
        scored(Status.FAILED),
        dataclasses.replace(scored(), trajectory=None),
        scored(tokens=0),
    )
    assert forks([scored(), scored(traces=2), empty]) == 1
    assert lost([scored(), failed, empty, nothing]) == 3
    assert Evaluation.of([scored(), scored()]) == Evaluation(0.2, 0.0, 2)


def test_a_bar_shows_the_reward_and_where_the_baseline_is() -> None:
    """Always equally long, the mark inside."""
    assert bar(0.5, 0.25).count("█") == 19
    assert bar(0.5, 0.25).index("┃") == 10
    assert {len(bar(reward, baseline)) for reward in (0.0, 1.0) for baseline in (0.0, 1.0)} == {40}
