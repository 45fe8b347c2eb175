"""How busy run slots are kept: stages in pools against one slot for a whole session, both against the ideal schedule.

Sessions are drawn from a seed: INIT 20-60 s, run 60-600 s and evaluation 10-300 s each. See `staging_simulated`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.context import Bench
from tests.bench.report import Metric, compared, plain
from tests.bench.staging_simulated import DEFAULTS, Job, World


def jobs(count: int, seed: int) -> list[Job]:
    """Sessions as the fleet meets them: evenly drawn times."""
    draw = random.Random(seed)
    return [
        Job(draw.randint(20_000, 60_000), draw.randint(60_000, 600_000), draw.randint(10_000, 300_000))
        for _ in range(count)
    ]


def ideal(work: Sequence[Job], slots: int) -> float:
    """The share of time that slots are busy when every session is ready at once and each slot takes the next one."""
    free = [0] * slots
    for job in work:
        heapq.heapreplace(free, free[0] + job.run_ms)
    return sum(job.run_ms for job in work) / (slots * max(free))


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of time that run slots are busy, each way."""

    ideal: float
    staged: float
    unstaged: float


def shares(sessions: int, workers: int, seed: int) -> Shares:
    """One draw of sessions, scheduled each way. Needs a running event loop (a worker's sessions hold futures)."""
    work = jobs(sessions, seed)
    staged, unstaged = (World(work, workers, is_staged=on).run() for on in (True, False))
    return Shares(ideal(work, workers * DEFAULTS["run_slots"]), staged, unstaged)


async def measure(bench: Bench) -> list[Metric]:
    """Four workers with default pools; the worst draw counts for the share of the ideal."""
    sessions, seeds = (60, [1]) if bench.quick else (400, [1, 2])
    found = [shares(sessions, 4, seed) for seed in seeds]
    for seed, one in zip(seeds, found, strict=True):
        bench.say(
            f"staging, seed {seed}: run slots busy {one.staged:.1%} staged, {one.unstaged:.1%} unstaged, {one.ideal:.1%} ideal"
        )
    metrics: list[Metric] = []
    if not bench.quick:
        from tests.bench.staging_live import FASTER, live_share

        share, simulated = await live_share(bench.work_dir / "worker", 24, seed=1)
        bench.say(f"staging, a real worker at {FASTER} x: run slots busy {share:.1%}, {simulated:.1%} as simulated")
        metrics.append(
            compared(f"staging: run slots busy, a real worker at {FASTER} x", 100 * share, "%", 100 * simulated)
        )
    worst = min(found, key=lambda one: one.staged / one.ideal)
    return [
        compared("staging: run slots busy, staged", 100 * worst.staged, "%", 100 * worst.ideal),
        compared("staging: run slots busy, unstaged", 100 * worst.unstaged, "%", 100 * worst.ideal),
        plain("staging: share of the ideal schedule (target 95)", 100 * worst.staged / worst.ideal, "%"),
        *metrics,
    ]
