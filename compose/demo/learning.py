"""The run itself: evaluate, train step by step through the real harness, evaluate what was never trained on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from bus import Bus
from compose.demo import family
from compose.demo.outcome import Evaluation, Outcome, forks, gain, has_gained, lost
from compose.demo.rollouts import Rollouts, rollouts
from compose.errors import CommandError
from schemas.records import ScoredTrajectory
from schemas.task import TaskSpec
from trainer_sink.reference import GrpoSettings, StepReport, train_grpo

GROUPS_PER_STEP: Final = 6
SAMPLES: Final = 4
MOST_STEPS: Final = 30
# Sessions cost nearly all of the time, so they are few and used well. Steps of new sessions until the mean of the last five is 0.77,
# offline, seeds 0 to 7: 9 at most with this (7 in the mean), 13 at most with three passes at 7e-4 (9), and 12 at most (8.7) where the
# evaluation is all 24 combinations in groups of two: half of such groups have no difference.
LEARNING_RATE: Final = 1e-3
EPOCHS: Final = 4
WARM_UP_STEPS: Final = 3
BETA2: Final = 0.95
EVALUATION_STEPS: Final = 2
"""The evaluation at version 0 is the first two steps' sessions: 48 of them, in 12 groups."""
HELD_OUT_BEFORE: Final = 2
"""Samples of each held-out combination at version 0: the run waits for them, so they are fewer than after it."""
HELD_OUT_AFTER: Final = 4
EVALUATION_WITHIN_S: Final = 300.0
STEP_WITHIN_S: Final = 180.0
_EVALUATION: Final = "evaluation"
"""For no trainer: see `for_trainer` in docs/tasks.md."""
_SEED_STEP: Final = 100_000
"""Between the seeds of two runs: no sample of the one has a seed of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. `steps`: exactly so many, instead of as many as the gain takes; `evaluation_steps` of them are the evaluation's."""

    seed: int
    policy_id: str
    model: Path
    output_dir: Path
    steps: int | None = None
    evaluation_steps: int = EVALUATION_STEPS
    held_out_before: int = HELD_OUT_BEFORE
    held_out_after: int = HELD_OUT_AFTER


@dataclass(frozen=True, slots=True)
class Shown:
    """What the command shows meanwhile."""

    line: Callable[[str], None]
    step: Callable[[StepReport, Sequence[float], float], None]
    """A step, the rewards so far of steps after the evaluation's, and the baseline."""


def model_dir() -> Path:
    """The directory of the checkpoint that the demo starts from."""
    return Path(str(resources.files("compose.demo").joinpath("model")))


@dataclass(slots=True)
class _Tasks:
    """The run's tasks, each with seeds of its own."""

    plan: Plan
    made: int = 0

    def evaluation(self, name: str, combinations: Sequence[family.Combination], samples: int) -> list[TaskSpec]:
        """Tasks that no trainer gets."""
        return [self._task(f"{name}-{c.word}-{c.file}", c, samples, _EVALUATION) for c in combinations]

    def training(self, combinations: Sequence[family.Combination]) -> list[TaskSpec]:
        """Tasks for the trainer, one group each."""
        return [self._task(f"train-{self.made}", c, SAMPLES, "") for c in combinations]

    def _task(self, name: str, combination: family.Combination, samples: int, for_trainer: str) -> TaskSpec:
        seed = self.plan.seed * _SEED_STEP + self.made * 10
        self.made += 1
        return family.task_of(
            combination,
            task_id=f"demo-{self.plan.seed}-{name}",
            samples=samples,
            seed=seed,
            policy_id=self.plan.policy_id,
            for_trainer=for_trainer,
        )


async def learn(bus: Bus, plan: Plan, shown: Shown, *, harness_version: str) -> tuple[Outcome, list[ScoredTrajectory]]:
    """The whole run on a stack that is up and serves `plan.model` as version 0; the outcome, and all sessions' results.

    Raises CommandError when sessions or steps don't come within their time, and what the trainer raises.
    """
    up = time.monotonic()
    tasks = _Tasks(plan)
    run = _Training(bus, plan, tasks=tasks, shown=shown, up=up)
    async with rollouts(bus) as rolled:
        before = await run.feed(rolled, plan.evaluation_steps * GROUPS_PER_STEP)
        held_out = tasks.evaluation("before", family.HELD_OUT, plan.held_out_before)
        await rolled.submit(held_out)
        first, others, _ = await asyncio.gather(
            _results(rolled, before), _results(rolled, held_out), asyncio.to_thread(_load_torch)
        )
        trained, held_out_before = Evaluation.of(first), Evaluation.of(others)
        shown.line(
            f"version 0: reward {trained.reward:.3f} over {trained.sessions} sessions, "
            f"held-out combinations {held_out_before.reward:.3f} over {held_out_before.sessions}"
        )
        await run.train(rolled, trained.reward)  # not before: a step would change the weights under the evaluation
        after = tasks.evaluation("after", family.HELD_OUT, plan.held_out_after)
        await rolled.submit(after)
        held_out_after = Evaluation.of(await _results(rolled, after))
        scored = list(rolled.scored.values())
        outcome = Outcome(
            harness="pi",
            harness_version=harness_version,
            model_digest=_digest(plan.model),
            seed=plan.seed,
            baseline=trained.reward,
            rewards=run.rewards,
            evaluation_steps=plan.evaluation_steps,
            gain=gain(run.rewards[plan.evaluation_steps :], trained.reward),
            reached_after_s=run.reached_after_s,
            seconds=time.monotonic() - up,
            sessions=rolled.submitted,
            forks=forks(scored),
            lost=lost(scored) + rolled.submitted - len(scored),
            max_logprob_diff=run.max_logprob_diff,
            versions=run.versions,
            trained=trained,
            held_out_before=held_out_before,
            held_out_after=held_out_after,
        )
        return outcome, scored


class _Training:
    """The trainer, and the tasks that it is fed with: the next step's go out when a step is published."""

    def __init__(self, bus: Bus, plan: Plan, *, tasks: _Tasks, shown: Shown, up: float) -> None:
        self._bus = bus
        self._plan = plan
        self._tasks = tasks
        self._shown = shown
        self._up = up
        self._begun_at = time.time_ns() // 1_000_000
        self._order = family.draws(plan.seed)
        self._reports: asyncio.Queue[StepReport] = asyncio.Queue()
        self._stop = asyncio.Event()
        self.rewards: list[float] = []
        self.versions: list[str] = []
        self.max_logprob_diff = 0.0
        self.reached_after_s: float | None = None

    async def feed(self, rolled: Rollouts, groups: int) -> list[TaskSpec]:
        """Submit so many more groups; their tasks."""
        made = self._tasks.training([next(self._order) for _ in range(groups)])
        await rolled.submit(made)
        return made

    async def train(self, rolled: Rollouts, baseline: float) -> None:
        """The trainer and its feeder, until the run is over. The evaluation's groups, which are on the log, come first."""
        settings = GrpoSettings(
            model=self._plan.model,
            output_dir=self._plan.output_dir,
            resume=False,
            start=self._begun_at,  # a stack that was left running has groups of an earlier run
            policy_id=self._plan.policy_id,
            trainer_id="demo",
            groups_per_step=GROUPS_PER_STEP,
            max_steps=self._plan.steps or MOST_STEPS,
            lr=LEARNING_RATE,
            epochs=EPOCHS,
            warmup_steps=WARM_UP_STEPS,
            beta2=BETA2,
            seed=self._plan.seed,
            push_at_start=False,  # the engine began with this very checkpoint
            plot=False,  # it is drawn at the end, with the baseline
        )
        training = asyncio.create_task(
            train_grpo(self._bus, settings, on_step=self._reports.put_nowait, stop=self._stop), name="demo-trainer"
        )
        judging = asyncio.create_task(self._judge(rolled, baseline), name="demo-judge")
        try:
            await asyncio.wait({training, judging}, return_when=asyncio.FIRST_COMPLETED)
            if training.done():
                training.result()
            await judging
            await training
        finally:
            for task in (training, judging):
                task.cancel()
            await asyncio.gather(training, judging, return_exceptions=True)

    async def _judge(self, rolled: Rollouts, baseline: float) -> None:
        while True:
            try:
                async with asyncio.timeout(STEP_WITHIN_S):
                    report = await self._reports.get()
            except TimeoutError as exc:
                raise CommandError(
                    f"step {len(self.rewards) + 1} didn't come within {STEP_WITHIN_S:.0f} s",
                    hint="look into the logs beside result.json",
                ) from exc
            self.rewards.append(report.reward)
            self.versions.append(report.version)
            self.max_logprob_diff = max(self.max_logprob_diff, report.max_logprob_diff)
            self._shown.step(report, self.rewards[self._plan.evaluation_steps :], baseline)
            if self.reached_after_s is None and has_gained(self.rewards, baseline, self._plan.evaluation_steps):
                self.reached_after_s = time.monotonic() - self._up
            if self._is_over():
                self._stop.set()
                return
            if len(self.rewards) >= self._plan.evaluation_steps:
                await self.feed(rolled, GROUPS_PER_STEP)

    def _is_over(self) -> bool:
        if self._plan.steps is not None:
            return len(self.rewards) >= self._plan.steps
        return self.reached_after_s is not None or len(self.rewards) >= MOST_STEPS


async def _results(rolled: Rollouts, tasks: Sequence[TaskSpec]) -> list[ScoredTrajectory]:
    try:
        return await rolled.results(tasks, EVALUATION_WITHIN_S)
    except TimeoutError as exc:
        there = sum(result.task_id in {task.task_id for task in tasks} for result in rolled.scored.values())
        raise CommandError(
            f"{there} of {sum(task.num_samples for task in tasks)} sessions came within {EVALUATION_WITHIN_S:.0f} s",
            hint="look into the logs beside result.json",
        ) from exc


def _digest(model: Path) -> str:
    from trainer_sink.policies.digest import digest_of

    return digest_of(model)


def _load_torch() -> None:
    """What the trainer imports first, for seconds: it isn't started yet, and would wait for this then."""
    import trainer_sink.reference.learner  # noqa: F401
