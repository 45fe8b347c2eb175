"""What is captured: two sets of sessions of the demo's tiny policy, one through the real Pi, one of many calls each."""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from compose.ablation import errand_agent
from compose.ablation.arms import Arm
from compose.demo import family
from schemas.task import Budgets, BuilderSpec, EvaluatorSpec, HarnessSpec, Sampling, TaskSpec

ERRANDS: Final = (1, 2, 3, 4)
"""So many errands in one session, each with up to three calls; the tasks of the set differ in it."""
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


def errand_set(groups: int, samples: int, seed: int, policy_id: str) -> list[TaskSpec]:
    """Several errands in one conversation of a small agent of ours: two to eight calls a session and more."""
    rng = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
    return [
        _errands(n, ERRANDS[n % len(ERRANDS)], rng, samples=samples, seed=seed, policy_id=policy_id)
        for n in range(groups)
    ]


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


def _errands(n: int, count: int, rng: random.Random, *, samples: int, seed: int, policy_id: str) -> TaskSpec:
    words = rng.sample(family.WORDS, count)
    files = rng.sample(family.FILES, count)
    asked = [family.Combination(word, file).instruction for word, file in zip(words, files, strict=True)]
    command = shlex.join([sys.executable, str(Path(errand_agent.__file__)), *asked])
    return TaskSpec(
        task_id=f"ablation-errands-{seed}-{n}",
        instruction=" ".join(asked),
        harness=HarnessSpec(name="shell", options={"command": command}),
        evaluator=EvaluatorSpec(name="command", options={"command": _share_right(words, files), "score": "printed"}),
        num_samples=samples,
        sampling=Sampling(temperature=1.0, seed=seed * 100_000 + 50_000 + n * 100),
        budgets=Budgets(init_s=120, run_s=120, postrun_s=60, evaluate_s=60),
        max_attempts=2,
        policy_id=policy_id,
        for_trainer=_NO_TRAINER,
        metadata={"errands": count},
    )


def _share_right(words: Sequence[str], files: Sequence[str]) -> str:
    """A command that prints the share of errands that were done right."""
    checks = "; ".join(
        f'[ "$(cat {file} 2>/dev/null)" = {word} ] && n=$((n+1))' for word, file in zip(words, files, strict=True)
    )
    return f"n=0; {checks}; echo $n | awk '{{print $1 / {len(words)}}}'"
