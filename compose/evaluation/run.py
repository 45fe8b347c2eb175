"""Running an evaluation: the task set for each harness, submitted under names of its own, followed to the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bus import Bus
from compose.cli.task_file import check_spec, request_of
from compose.errors import usage
from compose.evaluation.report import Attempt, Report
from compose.watch import Progress, follow
from schemas.records import ScoredTrajectory
from schemas.task import HarnessSpec, TaskSpec
from trainer_sink.policies import read_timelines

NOBODY: Final = "evaluation"
"""The trainer that an evaluation's results are for: there is none, so no trainer learns from the test set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an evaluation runs: the tasks as submitted, and what each is called in the task file."""

    eval_id: str
    policy_id: str
    tasks: list[TaskSpec]
    names: dict[str, str]

    @property
    def sessions(self) -> int:
        """How many there will be."""
        return sum(task.num_samples for task in self.tasks)


def plan(
    tasks: Sequence[TaskSpec],
    *,
    eval_id: str,
    policy_id: str,
    harnesses: Sequence[str] = (),
    samples: int | None = None,
) -> Plan:
    """The tasks of an evaluation, each for each harness; CommandError when one can't run so."""
    made: list[TaskSpec] = []
    names: dict[str, str] = {}
    for number, task in enumerate(tasks, 1):
        name = task.task_id or f"task-{number}"
        for harness in harnesses or [task.harness.name]:
            task_id = f"{eval_id}/{name}/{harness}"
            if task_id in names:
                # One of them would never run, and the others' sessions would count as both.
                raise usage(
                    f"the task {name!r} stands there twice for the harness {harness}",
                    hint="give each task an id of its own",
                )
            own = task.harness if harness == task.harness.name else HarnessSpec(name=harness)
            update = {
                "task_id": task_id,
                "policy_id": policy_id,
                "harness": own,
                "num_samples": samples or task.num_samples,
                "min_usable": None,
                "for_trainer": NOBODY,
                "metadata": {**task.metadata, "eval_id": eval_id, "eval_task": name},
            }
            spec = TaskSpec.model_validate(task.model_copy(update=update).model_dump())
            check_spec(spec, f"{name}, harness {harness}: ")
            made.append(spec)
            names[task_id] = name
    return Plan(eval_id=eval_id, policy_id=policy_id, tasks=made, names=names)


async def published_version(bus: Bus, policy_id: str) -> str:
    """The newest version on the policy's timeline; empty where none was published."""
    published = (await read_timelines(bus)).of(policy_id).published
    return published.version if published is not None else ""


async def run(
    bus: Bus,
    made: Plan,
    *,
    task_file: str,
    version: str | None,
    accept: float,
    timeout_s: float,
    on_change: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Submits the plan and waits for its results; what hasn't ended by then is `missing`.

    `version` None: the newest on the policy's timeline.
    """
    fixed = await published_version(bus, made.policy_id) if version is None else version
    started_at = int(time.time() * 1000)
    for task in made.tasks:
        await bus.publish(request_of(task))
    seen = Progress(made.sessions)

    def note(progress: Progress) -> None:
        seen.scored = progress.scored
        on_change(progress)

    # When the wait is over, what is there is reported, with how much isn't.
    with contextlib.suppress(TimeoutError):
        await follow(bus, made.names, expected=made.sessions, since_ms=started_at, timeout_s=timeout_s, on_change=note)
    scored: list[ScoredTrajectory] = list(seen.scored.values())
    attempts = [Attempt.of(one, task=made.names[one.task_id]) for one in scored]
    return Report(
        eval_id=made.eval_id,
        task_file=task_file,
        policy_id=made.policy_id,
        version=fixed,
        accept=accept,
        samples=max((task.num_samples for task in made.tasks), default=1),
        started_at=started_at,
        ended_at=int(time.time() * 1000),
        missing=made.sessions - len(scored),
        attempts=sorted(attempts, key=lambda one: (one.harness, one.task, one.index)),
    )
