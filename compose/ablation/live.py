"""A short live run per arm: sessions of the real Pi, the reference trainer, the same start and the same tasks for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bus import Bus
from compose.ablation.arms import Arm
from compose.ablation.busy import busy_of
from compose.ablation.sessions import live_set
from compose.demo.rollouts import rollouts
from compose.errors import CommandError
from trainer_sink.policies import PolicyWriter
from trainer_sink.reference import GrpoSettings, StepReport, train_grpo

GROUPS_PER_STEP: Final = 8
SAMPLES: Final = 4
STEP_WITHIN_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """One arm, live."""

    arm: Arm
    rewards: tuple[float, ...]
    """Mean of each step's 32 sessions."""
    sequences: int
    """That the loss saw, over all steps."""
    trained_tokens: int
    trainer_s: float
    """In the update itself."""
    wall_s: float
    """From the first task to the last step's end."""
    engine_busy_share: float
    """Seconds in which the engine computed, of those."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "arm": self.arm.name}


async def run_live(
    bus: Bus,
    arm: Arm,
    *,
    model: Path,
    output_dir: Path,
    engine_url: str,
    policy_id: str,
    steps: int,
    seed: int,
    on_step: Callable[[StepReport], None],
) -> LiveResult:
    """Put the start's weights back into the engine, then train for `steps` steps. CommandError when a step doesn't come in time."""
    tasks = live_set(arm, steps * GROUPS_PER_STEP, SAMPLES, seed, policy_id)
    async with PolicyWriter(bus, policy_id, "ablation-reset") as writer:
        await writer.push(model)
    settings = GrpoSettings(
        model=model,
        output_dir=output_dir,
        resume=False,
        policy_id=policy_id,
        trainer_id=f"ablation-{arm.builder}-{arm.weighting}-{seed}",
        task_ids=tuple(task.task_id or "" for task in tasks),
        groups_per_step=GROUPS_PER_STEP,
        max_steps=steps,
        weighting=arm.weighting,
        aggregation="sequence_mean",
        push_at_start=False,
        plot=False,
        seed=seed,
    )
    reports: asyncio.Queue[StepReport] = asyncio.Queue()
    done: list[StepReport] = []
    async with rollouts(bus) as rolled:
        before, began = await busy_of(engine_url), time.monotonic()
        training = asyncio.create_task(train_grpo(bus, settings, on_step=reports.put_nowait), name="ablation-trainer")
        try:
            for step in range(steps):
                await rolled.submit(tasks[step * GROUPS_PER_STEP : (step + 1) * GROUPS_PER_STEP])
                done.append(await _next(reports, training, arm, step))
                on_step(done[-1])
            await training
        finally:
            training.cancel()
            await asyncio.gather(training, return_exceptions=True)
        wall_s = time.monotonic() - began
        busy_s = await busy_of(engine_url) - before
    return LiveResult(
        arm=arm,
        rewards=tuple(report.reward for report in done),
        sequences=sum(report.sequences for report in done),
        trained_tokens=sum(report.tokens for report in done),
        trainer_s=sum(report.seconds.get("train", 0.0) for report in done),
        wall_s=wall_s,
        engine_busy_share=busy_s / wall_s,
    )


async def _next(reports: asyncio.Queue[StepReport], training: asyncio.Task[Any], arm: Arm, step: int) -> StepReport:
    """The next step's report, or what ended the trainer."""
    coming = asyncio.create_task(reports.get())
    try:
        await asyncio.wait({coming, training}, timeout=STEP_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            return coming.result()
        if training.done():
            training.result()
        raise CommandError(
            f"{arm.name}: step {step + 1} didn't come within {STEP_WITHIN_S:.0f} s", hint="look into the stack's logs"
        )
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
