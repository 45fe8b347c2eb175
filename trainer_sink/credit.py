"""Credit: what each trace of a group is worth to the loss. Pure numbers in, pure numbers out.

A session's traces share its outcome, or each has a reward of its own. `per_session` weights (1 / traces of the session)
make a fragmented session count as much as a whole one; `per_trace` counts every trace as a sample of its own, which is the
published baseline that invites reward hacking. Advantages compare a trace with its group's other sessions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from trainer_sink.errors import SinkError

Advantage = Literal["group_norm", "leave_one_out", "mean_baseline", "none"]
Weighting = Literal["per_session", "per_trace"]
ZeroVariance = Literal["drop", "keep", "error"]

Floats = NDArray[np.float64]

# Rewards that are this close are the same verdict: a mean of floats isn't exact (0.1 + 0.2 != 0.3).
SAME_REWARD: Final = 1e-9


class ZeroVarianceError(SinkError):
    """All rewards of a group are the same, and the rule says that this is an error."""


class RewardError(SinkError, ValueError):
    """Rewards that credit can't be computed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRule:
    """How a group's rewards become weights and advantages.

    `advantage`: `group_norm` ((r - mean) / (std + `std_epsilon`), GRPO), `mean_baseline` (r - mean, GRPO without the division),
    `leave_one_out` (r - mean of the *other* sessions, RLOO) or `none` (r itself). `zero_variance`: what becomes of a group
    whose rewards are all the same: its traces are left out (`drop`), kept with advantage 0 (`keep`), or ZeroVarianceError.
    `failed_reward` is the reward of a session that its harness failed without a verdict; None leaves such sessions out of
    the baseline. `ddof` is the standard deviation's: 1 as torch.std has it, 0 for the population's.
    """

    advantage: Advantage = "group_norm"
    weighting: Weighting = "per_session"
    zero_variance: ZeroVariance = "keep"
    failed_reward: float | None = None
    std_epsilon: float = 1e-6
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        if self.std_epsilon < 0:
            raise ValueError(f"std_epsilon is {self.std_epsilon}: it is added to a standard deviation, so at least 0")
        if self.failed_reward is not None and not math.isfinite(self.failed_reward):
            raise ValueError(
                f"failed_reward is {self.failed_reward}: use a finite number, or None to leave sessions out"
            )


@dataclass(frozen=True, slots=True)
class Credit:
    """Per session, per trace: weight and advantage. Sessions stand in the order in which their rewards were given."""

    weights: tuple[tuple[float, ...], ...]
    advantages: tuple[tuple[float, ...], ...]
    mean: float
    std: float
    is_dropped: bool = False
    """All rewards are the same and the rule drops such groups: nothing of it is to be trained."""
    counts: Counter[str] = field(default_factory=Counter)
    """`zero_variance` when the group has none; `alone` when leave-one-out had nothing to compare with."""


def assign(rewards: Sequence[Sequence[float]], rule: CreditRule | None = None, *, what: str = "the group") -> Credit:
    """Weights and advantages of one group: one sequence of trace rewards for each session that counts.

    A session without traces that counts in the baseline (a failed one) is given as its one reward; the caller ignores the
    credit of what it doesn't train. RewardError for a session without a reward or a reward that isn't finite;
    ZeroVarianceError names `what` when the rule asks for it.
    """
    rule = rule or CreditRule()
    sizes = [len(r) for r in rewards]
    if not all(sizes):
        raise RewardError(
            f"session {sizes.index(0)} of {what} has no reward: leave it out, or give it the one it counts with"
        )
    # Plain numbers: a group has a handful of sessions, and each look of numpy at them would cost more than all of this.
    flat = [float(r) for session in rewards for r in session]
    if not all(map(math.isfinite, flat)):
        raise RewardError(f"a reward of {what} isn't finite: leave that session out")
    per_session = rule.weighting == "per_session"
    weights = [1.0 / size if per_session else 1.0 for size in sizes for _ in range(size)]
    mean, std = moments(flat, weights, units=len(sizes) if per_session else len(flat), ddof=rule.ddof)
    counts: Counter[str] = Counter()
    is_flat = not flat or max(flat) - min(flat) <= SAME_REWARD
    if is_flat:
        counts["zero_variance"] += 1
        if rule.zero_variance == "error" and rule.advantage != "none":
            raise ZeroVarianceError(
                f"all {len(sizes)} sessions of {what} have reward {mean:g}: nothing can be learned from it. Use "
                'zero_variance="drop" or "keep", or sample harder tasks'
            )
    if rule.advantage == "none":
        advantages = flat
    elif is_flat:
        advantages = [0.0] * len(flat)
    elif rule.advantage == "leave_one_out":
        advantages = leave_one_out(flat, weights, sizes)
    elif rule.advantage == "mean_baseline":
        advantages = [r - mean for r in flat]
    else:
        advantages = group_norm(flat, mean, std, epsilon=rule.std_epsilon)
    if rule.advantage == "leave_one_out" and len(sizes) == 1:
        counts["alone"] += 1
    return Credit(
        weights=_split(weights, sizes),
        advantages=_split(advantages, sizes),
        mean=mean,
        std=std,
        is_dropped=is_flat and rule.zero_variance == "drop" and rule.advantage != "none",
        counts=counts,
    )


def moments(rewards: Sequence[float], weights: Sequence[float], *, units: int, ddof: int = 1) -> tuple[float, float]:
    """Weighted mean and standard deviation; `units` is what counts as one sample (sessions or traces) for `ddof`.

    With one reward per session this is numpy's `mean` and `std(ddof=…)`. One unit alone has std 0.
    """
    total = math.fsum(weights)
    if total == 0.0:
        return 0.0, 0.0
    mean = math.fsum(w * r for w, r in zip(weights, rewards, strict=True)) / total
    variance = math.fsum(w * (r - mean) ** 2 for w, r in zip(weights, rewards, strict=True)) / total
    return mean, math.sqrt(variance * units / (units - ddof)) if units > ddof else 0.0


def group_norm(rewards: Sequence[float], mean: float, std: float, *, epsilon: float = 1e-6) -> list[float]:
    """(r - mean) / (std + epsilon): the advantage of GRPO (Shao et al. 2024, arXiv 2402.03300)."""
    scale = std + epsilon
    return [(r - mean) / scale if scale > 0 else r - mean for r in rewards]


def leave_one_out(rewards: Sequence[float], weights: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Reward minus the mean of the *other sessions*: RLOO (Ahmadian et al. 2024, arXiv 2402.14740).

    `sizes` are the traces of each session, in order. The whole session is left out, since its traces share one outcome. With
    one session there is nothing to compare with: the advantage is 0.
    """
    if len(sizes) < 2:
        return [0.0] * len(rewards)
    weight = [math.fsum(session) for session in _split(weights, sizes)]
    reward = [math.fsum(session) for session in _split([w * r for w, r in zip(weights, rewards, strict=True)], sizes)]
    all_weight, all_reward = math.fsum(weight), math.fsum(reward)
    others = [(all_reward - r) / (all_weight - w) for w, r in zip(weight, reward, strict=True)]
    baseline = [other for other, size in zip(others, sizes, strict=True) for _ in range(size)]
    return [r - other for r, other in zip(rewards, baseline, strict=True)]


def tis_weights(
    new_logprobs: NDArray[np.floating[Any]],
    behaviour_logprobs: NDArray[np.floating[Any]],
    mask: NDArray[np.generic],
    cap: float = 2.0,
) -> Floats:
    """Truncated importance weights min(exp(new - behaviour), cap) of trained tokens, 0 elsewhere; all of one shape (…, T).

    They multiply the policy gradient as constants, so that tokens which an older version (or another engine) sampled count as
    the new policy would have them (Espeholt et al. 2018, arXiv 1802.01561; here per token). Both logprobs are natural
    logarithms at the temperature of sampling. ValueError for shapes that differ, a cap that isn't positive, or a trained
    token without a finite logprob.
    """
    if not new_logprobs.shape == behaviour_logprobs.shape == mask.shape:
        raise ValueError(
            f"new logprobs {new_logprobs.shape}, behaviour logprobs {behaviour_logprobs.shape} and mask {mask.shape} must have "
            "one shape: align all three with the tokens"
        )
    if not cap > 0:
        raise ValueError(f"cap is {cap}: weights are cut above it, so it must be positive (2.0 is common)")
    is_trained = mask.astype(bool)
    difference = np.where(is_trained, new_logprobs, 0.0) - np.where(is_trained, behaviour_logprobs, 0.0)
    if not np.isfinite(difference).all():
        bad = int(np.count_nonzero(~np.isfinite(difference)))
        raise ValueError(f"{bad} trained tokens have a logprob that isn't finite: such a token can't have been sampled")
    # The difference is cut before the exponential, which overflows above 709.
    weights: Floats = np.where(is_trained, np.exp(np.minimum(difference, math.log(cap))), 0.0)
    return weights


def _split(values: Sequence[float], sizes: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    left = iter(values)
    return tuple(tuple(islice(left, size)) for size in sizes)
