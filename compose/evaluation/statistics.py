"""Shares with their uncertainty: pass@k, Wilson's interval, and the bootstrap over tasks. Pure, and seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

Z_95: Final = 1.959963984540054
"""The two-sided 95 % point of the normal distribution."""

RESAMPLES: Final = 2000
"""Of a bootstrap: the ends of a 95 % interval are then within about a percentage point of those of many more."""

SEED: Final = 20240229
"""Fixed, so that the same results give the same interval."""

Task = tuple[int, int]
"""Of one task: how many sessions were accepted, out of how many attempted."""


@dataclass(frozen=True, slots=True)
class Share:
    """An estimate and its 95 % interval; NaN where there is nothing to estimate from."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """`50.0 % [20.1, 79.9]`."""
        if math.isnan(self.value):
            return "-"
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(accepted: int, attempted: int) -> Share:
    """A binomial share with Wilson's score interval, which holds for few trials and for shares near 0 and 1."""
    if attempted == 0:
        return Share(math.nan, math.nan, math.nan)
    share, z2 = accepted / attempted, Z_95**2
    centre = (share + z2 / (2 * attempted)) / (1 + z2 / attempted)
    half = Z_95 / (1 + z2 / attempted) * math.sqrt(share * (1 - share) / attempted + z2 / (4 * attempted**2))
    return Share(share, max(0.0, centre - half), min(1.0, centre + half))


def pass_at(k: int, accepted: int, attempted: int) -> float:
    """The chance that at least one of k sessions is accepted, estimated without bias from n >= k (Chen et al. 2021, eq. 1)."""
    if attempted < k:
        raise ValueError(f"pass@{k} needs {k} sessions, not {attempted}")
    if attempted - accepted < k:
        return 1.0
    return 1.0 - math.comb(attempted - accepted, k) / math.comb(attempted, k)


def mean_pass_at(k: int, tasks: Sequence[Task]) -> float:
    """The mean of pass@k over tasks; those with fewer than k sessions don't count. NaN where none is left."""
    values = [pass_at(k, accepted, attempted) for accepted, attempted in tasks if attempted >= k]
    return math.fsum(values) / len(values) if values else math.nan


def share_of_tasks(k: int, tasks: Sequence[Task]) -> Share:
    """pass@k with its interval.

    Where each task has one session these are independent trials: Wilson's interval. Otherwise sessions of one task hang
    together, so whole tasks are resampled (percentile bootstrap).
    """
    if k == 1 and all(attempted == 1 for _, attempted in tasks):
        return wilson(sum(accepted for accepted, _ in tasks), len(tasks))
    return bootstrap(tasks, lambda drawn: mean_pass_at(k, drawn))


def bootstrap(tasks: Sequence[Task], estimate: Callable[[Sequence[Task]], float]) -> Share:
    """An estimate over tasks with its percentile bootstrap interval."""
    value = estimate(tasks)
    if math.isnan(value):
        return Share(value, math.nan, math.nan)
    draw = random.Random(SEED)  # noqa: S311  # no secret
    found = sorted(estimate(draw.choices(tasks, k=len(tasks))) for _ in range(RESAMPLES))
    low, high = _middle_95(found)
    return Share(value, low, high)


def difference(k: int, first: Sequence[Task], second: Sequence[Task]) -> Share:
    """pass@k of the second minus that of the first, over the same tasks in the same order (paired bootstrap)."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a[1] >= k and b[1] >= k]
    if not pairs:
        return Share(math.nan, math.nan, math.nan)
    gains = [pass_at(k, *b) - pass_at(k, *a) for a, b in pairs]
    draw = random.Random(SEED)  # noqa: S311  # no secret
    found = sorted(math.fsum(draw.choices(gains, k=len(gains))) / len(gains) for _ in range(RESAMPLES))
    low, high = _middle_95(found)
    return Share(math.fsum(gains) / len(gains), low, high)


def _middle_95(found: Sequence[float]) -> tuple[float, float]:
    usable = [value for value in found if not math.isnan(value)]
    if not usable:
        return math.nan, math.nan
    last = len(usable) - 1
    return usable[round(0.025 * last)], usable[round(0.975 * last)]
