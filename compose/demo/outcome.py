"""What the demo found, and whether that is what it promises. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from compose.demo.family import RIGHT
from schemas.records import ScoredTrajectory, Status

WINDOW: Final = 5
"""Steps whose mean reward is compared with the baseline."""
WANTED_GAIN: Final = 0.25
LOGPROB_LIMIT: Final = 1e-4
_BAR: Final = 40


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean reward over so many sessions under one version of the weights, and the share that was entirely right."""

    reward: float
    right: float
    sessions: int

    @classmethod
    def of(cls, scored: Sequence[ScoredTrajectory]) -> Evaluation:
        """From the sessions' results; a session without a reward counts as 0."""
        rewards = [result.reward or 0.0 for result in scored]
        count = max(1, len(rewards))
        return cls(sum(rewards) / count, sum(reward == RIGHT for reward in rewards) / count, len(rewards))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of the demo, as `result.json` holds it."""

    harness: str
    harness_version: str
    model_digest: str
    seed: int
    baseline: float
    """Mean reward of trained combinations at version 0."""
    rewards: Sequence[float]
    """Mean reward of each step."""
    evaluation_steps: int
    """So many first steps learnt from the evaluation's own sessions: together, their rewards are the baseline."""
    gain: float
    """Mean of the last five steps above the baseline; the evaluation's steps are never among them."""
    reached_after_s: float | None
    """From the stack being up to the step with which the wanted gain was reached; None: it wasn't."""
    seconds: float
    """From the stack being up to the end of the last evaluation."""
    sessions: int
    forks: int
    lost: int
    max_logprob_diff: float
    versions: Sequence[str]
    """Of the weights after each step."""
    trained: Evaluation
    """Of trained combinations, at version 0."""
    held_out_before: Evaluation
    held_out_after: Evaluation

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def failings(self, *, is_bounded: bool = False) -> list[str]:
        """What isn't as promised, one sentence each. A run that was bounded in steps isn't held to the gain."""
        found = []
        if not is_bounded and self.gain < WANTED_GAIN:
            found.append(f"the gain is {self.gain:+.3f} instead of {WANTED_GAIN:+.2f}")
        if self.lost:
            found.append(f"{self.lost} of {self.sessions} sessions were lost")
        if self.forks:
            found.append(f"{self.forks} sessions forked")
        if self.max_logprob_diff > LOGPROB_LIMIT:
            found.append(f"recomputed logprobs differ by {self.max_logprob_diff:.1e} (limit {LOGPROB_LIMIT:g})")
        if any(int(after) <= int(before) for before, after in pairwise(("0", *self.versions))):
            found.append(f"the versions don't rise with every step: {', '.join(self.versions)}")
        return found


def gain(rewards: Sequence[float], baseline: float) -> float:
    """Mean of the last five steps above the baseline; of fewer, where there are fewer."""
    last = rewards[-WINDOW:]
    return sum(last) / len(last) - baseline if last else 0.0


def has_gained(rewards: Sequence[float], baseline: float, evaluation_steps: int) -> bool:
    """Whether the run may end: not before the window is full of steps after the evaluation's."""
    after = rewards[evaluation_steps:]
    return len(after) >= WINDOW and gain(after, baseline) >= WANTED_GAIN


def forks(scored: Iterable[ScoredTrajectory]) -> int:
    """Sessions with more than one trace: a prompt that didn't begin with all that was said before."""
    return sum(len(result.trajectory.traces) > 1 for result in scored if result.trajectory)


def lost(scored: Iterable[ScoredTrajectory]) -> int:
    """Sessions that gave a trainer nothing: failed, or without a token to train."""
    return sum(
        result.status is not Status.COMPLETED
        or result.trajectory is None
        or not result.trajectory.counts.trainable_tokens
        for result in scored
    )


def bar(reward: float, baseline: float) -> str:
    """A reward as a bar, with a mark where the baseline is."""
    filled, mark = round(reward * _BAR), min(_BAR - 1, round(baseline * _BAR))
    cells = ["█" if n < filled else "·" for n in range(_BAR)]
    cells[mark] = "┃"
    return "".join(cells)
