"""The demo without learning, step by step: a scripted policy through Pi and Claude Code, and what is exported of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from compose.cli.connect import open_bus
from compose.cli.task_file import read_tasks, request_of
from compose.errors import CommandError
from compose.settings import StackSettings
from compose.watch import Progress, follow
from schemas.records import ScoredTrajectory, Status

HARNESSES = ("pi", "claude_code")
POLICY = "scripted:compose.demo.policy:reply"
SESSIONS_WITHIN_S = 300.0


async def run_harness(
    settings: StackSettings, harness: str, on_change: Callable[[Progress], None]
) -> tuple[list[ScoredTrajectory], float]:
    """Submit the harness' task and follow it; its scored trajectories and the seconds it took."""
    with resources.as_file(resources.files("compose.demo").joinpath(f"{harness}.yaml")) as path:
        (spec,) = read_tasks(str(path))
    request = request_of(spec)
    started, since_ms = time.monotonic(), int(time.time() * 1000)
    async with open_bus(settings) as bus:
        await bus.publish(request)
        progress = await follow(
            bus,
            [request.task_id],
            expected=spec.num_samples,
            since_ms=since_ms,
            timeout_s=SESSIONS_WITHIN_S,
            on_change=on_change,
        )
    return list(progress.scored.values()), time.monotonic() - started


def check(harness: str, scored: list[ScoredTrajectory]) -> None:
    """Raise CommandError unless every session completed with tokens to train, and one of them earned its reward."""
    failed = [s for s in scored if s.status is not Status.COMPLETED or s.trajectory is None or not s.trajectory.traces]
    if failed:
        why = "; ".join(f"{s.session_id[:8]}: {s.status}, {s.boundary}, {s.error}" for s in failed)
        raise CommandError(f"{len(failed)} of {len(scored)} {harness} sessions failed: {why}")
    if any(s.trajectory and not s.trajectory.counts.trainable_tokens for s in scored):
        raise CommandError(f"a {harness} session has no trainable token")
    if not any(s.reward == 1.0 for s in scored):
        raise CommandError(f"no {harness} session earned its reward")


async def export(settings: StackSettings, path: Path) -> int:
    """All traces into one Parquet file; how many rows."""
    from trainer_sink.export.parquet import export_parquet

    async with open_bus(settings) as bus:
        report = await export_parquet(bus, path)
    return int(report.rows)


async def dead_letters(settings: StackSettings) -> int:
    """How many records any consumer couldn't read: none, in a sound run."""
    from schemas.topics import dead_letter_topics

    names = [topic.name for topic in dead_letter_topics()]
    async with open_bus(settings) as bus:
        return len([letter async for letter in bus.tail(names, start="earliest", until_end=True)])
