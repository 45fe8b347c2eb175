"""The ablation from a running stack to its tables: capture, train the arms on what was captured, train the arms live."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bus import Bus
from compose.ablation import report
from compose.ablation.arms import ARMS
from compose.ablation.captured import CapturedSet, read_set
from compose.ablation.live import LiveResult, run_live
from compose.ablation.offline import ArmResult, settings_of, train_arm
from compose.ablation.sessions import again_set, pi_set
from compose.ablation.simulated import SimulatedResult, simulate
from compose.demo.rollouts import rollouts
from schemas.task import TaskSpec

SAMPLES: Final = 4
CAPTURED_WITHIN_S: Final = 1800.0
RESULT: Final = "result.json"
SIMULATED: Final = "simulated.json"

Show = Callable[[Any], None]
"""Takes a line of text or one of rich's tables."""
Sets = dict[str, tuple[CapturedSet, list[ArmResult]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the ablation is."""

    groups: int
    """In each captured set, of four sessions each."""
    sequences_per_update: int
    live_steps: int
    """Of each arm; 0: no live runs."""
    simulated_steps: int
    """Of each arm; 0: no simulated runs."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where it runs: a stack whose engine serves `model` as version 0."""

    state_dir: Path
    model: Path
    engine_url: str
    policy_id: str


async def run_simulated(model: Path, state_dir: Path, size: Size, show: Show) -> list[SimulatedResult]:
    """The arms in the simulated environment: no stack is needed. `simulated.json` holds what is done so far."""
    results: list[SimulatedResult] = []
    for arm in ARMS if size.simulated_steps else ():
        show(f"simulated: {arm.name}")
        told = await simulate(
            arm,
            model,
            state_dir / "training" / f"simulated-{arm.builder}-{arm.weighting}",
            steps=size.simulated_steps,
            sequences_per_update=size.sequences_per_update,
            seed=size.seed,
            on_step=show,
        )
        results.append(told)
        (state_dir / SIMULATED).write_text(json.dumps([one.to_json() for one in results], indent=2) + "\n")
    if results:
        show(report.simulated_table(results))
    return results


async def run(
    bus: Bus, place: Place, size: Size, show: Show, simulated: Sequence[SimulatedResult] = ()
) -> dict[str, Any]:
    """All that needs a stack; what `result.json` holds, which is written after each part, so that a later one's failure costs no figure.

    Raises TimeoutError when captured sessions don't come, and what `run_live` raises.
    """
    sets: Sets = {}
    live: list[LiveResult] = []
    wanted = {
        "pi": pi_set(size.groups, SAMPLES, size.seed, place.policy_id),
        "again": again_set(size.groups, SAMPLES, size.seed, place.policy_id),
    }
    for name, tasks in wanted.items():
        captured = await _captured(bus, tasks)
        show(report.set_line(name, captured))
        sets[name] = captured, await _trained(captured, place, size)
        show(report.offline_table(name, sets[name][1]))
        _write(place, size, sets, live, simulated)
    for arm in ARMS if size.live_steps else ():
        show(f"live: {arm.name}")
        told = await run_live(
            bus,
            arm,
            model=place.model,
            output_dir=place.state_dir / "training" / f"live-{arm.builder}-{arm.weighting}",
            engine_url=place.engine_url,
            policy_id=place.policy_id,
            steps=size.live_steps,
            seed=size.seed,
            on_step=lambda step: show(f"  {step.line()}"),
        )
        live.append(told)
        _write(place, size, sets, live, simulated)
    if live:
        show(report.live_table(live))
    show(report.published_line())
    return _write(place, size, sets, live, simulated)


async def _captured(bus: Bus, tasks: Sequence[TaskSpec]) -> CapturedSet:
    """The tasks' sessions, run and read back from the log."""
    async with rollouts(bus) as rolled:
        await rolled.submit(tasks)
        await rolled.results(tasks, CAPTURED_WITHIN_S)
    return await read_set(bus, task_ids=frozenset(task.task_id or "" for task in tasks))


async def _trained(captured: CapturedSet, place: Place, size: Size) -> list[ArmResult]:
    results = []
    for arm in ARMS:
        settings = settings_of(arm, place.model, place.state_dir / "training" / "offline", seed=size.seed)
        told = await asyncio.to_thread(
            train_arm, arm, captured, settings, sequences_per_update=size.sequences_per_update
        )
        results.append(told)
    return results


def _write(
    place: Place, size: Size, sets: Sets, live: Sequence[LiveResult], simulated: Sequence[SimulatedResult]
) -> dict[str, Any]:
    told = report.result_json(sets, live, simulated, **asdict(size), samples=SAMPLES, cores=os.cpu_count())
    (place.state_dir / RESULT).write_text(json.dumps(told, indent=2) + "\n")
    return told
