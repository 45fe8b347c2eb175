"""What is captured: two sets of sessions of the demo's tiny policy, one through the real Pi, one of many calls each."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

from compose.ablation import asking_agent
from compose.ablation.arms import Arm
from compose.demo import family
from schemas.task import BuilderSpec, HarnessSpec, TaskSpec

TIMES: Final = 6
"""How often the asking agent asks again: sessions that fail have eight calls and more, those that succeed two."""
_NO_TRAINER: Final = "ablation-captured"


def pi_set(groups: int, samples: int, seed: int, policy_id: str) -> list[TaskSpec]:
    """The demo's tasks through the real Pi: one or two calls a session."""
    draws = family.draws(seed)
    return [
        family.task_of(
            next(draws),
            task_id=f"ablation-pi-{seed}-{n}",
            samples=samples,
            seed=seed * 100_000 + n * 100,
            policy_id=policy_id,
            for_trainer=_NO_TRAINER,
        )
        for n in range(groups)
    ]


def again_set(groups: int, samples: int, seed: int, policy_id: str) -> list[TaskSpec]:
    """The same tasks through a small agent of ours that asks again while the file isn't right: two to nine calls a session."""
    draws = family.draws(seed)
    made = []
    for n in range(groups):
        combination = next(draws)
        words = [sys.executable, str(Path(asking_agent.__file__)), combination.word, combination.file, str(TIMES)]
        task = family.task_of(
            combination,
            task_id=f"ablation-again-{seed}-{n}",
            samples=samples,
            seed=seed * 100_000 + 50_000 + n * 100,
            policy_id=policy_id,
            for_trainer=_NO_TRAINER,
        )
        made.append(
            task.model_copy(update={"harness": HarnessSpec(name="shell", options={"command": shlex.join(words)})})
        )
    return made


def live_set(arm: Arm, groups: int, samples: int, seed: int, policy_id: str) -> list[TaskSpec]:
    """The demo's tasks again, built as the arm says; every arm has the same combinations and seeds in the same order."""
    draws = family.draws(seed)
    made = []
    for n in range(groups):
        task = family.task_of(
            next(draws),
            task_id=f"ablation-{arm.builder}-{arm.weighting}-{seed}-{n}",
            samples=samples,
            seed=seed * 100_000 + n * 100,
            policy_id=policy_id,
        )
        made.append(task.model_copy(update={"builder": BuilderSpec(name=arm.builder)}))
    return made
