"""The loop: collect groups, update, save weights with the position, push them to the engines, commit.

A step is saved before it is pushed and pushed before it is published. A kill anywhere leaves either the old checkpoint, from which
the step's groups come again, or the new one, which holds them: then the restart publishes the batch again and pushes the weights
under a further version. So each group is in the weights exactly once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from bus import Bus
from trainer_sink.consumer import GroupConsumer
from trainer_sink.groups import Group
from trainer_sink.reference.checkpoints import Checkpoints, RunState, sole_use
from trainer_sink.reference.errors import CheckpointError, LogprobMismatchError, TrainerError
from trainer_sink.reference.incoming import StepGroups
from trainer_sink.reference.metrics import MetricSink, sinks
from trainer_sink.reference.plot import draw_rewards
from trainer_sink.reference.progress import Progress, Reason
from trainer_sink.reference.pushes import Pushes, pushing
from trainer_sink.reference.reports import StepReport, TrainReport
from trainer_sink.reference.settings import GrpoSettings
from trainer_sink.sequences import TrainingSequence, sequences_of

if TYPE_CHECKING:
    from trainer_sink.reference.learner import Learner

_log = structlog.get_logger(__name__)

PLOT: Final = "rewards.png"

OnStep = Callable[[StepReport], None]


async def train_grpo(
    bus: Bus, settings: GrpoSettings, *, on_step: OnStep | None = None, stop: asyncio.Event | None = None
) -> TrainReport:
    """Train until the settings' end, or until `stop` is set; `on_step` is told each step once it is published.

    The bus must be started. Raises RunInUseError, CheckpointError, ModelLoadError or TrainerError before the first step;
    `trainer_sink.policies.SupersededError` when another trainer took the policy over; LogprobMismatchError when asked to; and what
    the consumer and the bus raise. What was saved by then can be resumed.
    """
    with sole_use(settings.output_dir):
        return await _Run(bus, settings, on_step, stop or asyncio.Event()).run()


class _Run:
    """One call of `train_grpo`."""

    def __init__(self, bus: Bus, settings: GrpoSettings, on_step: OnStep | None, stop: asyncio.Event) -> None:
        self._bus = bus
        self._settings = settings
        self._on_step = on_step
        self._stop = stop
        self._checkpoints = Checkpoints(settings.output_dir, keep=settings.keep_checkpoints)
        self._path = self._checkpoints.latest() if settings.resume else None
        self._state = None if self._path is None else self._checkpoints.state(self._path)
        self._progress = Progress(settings, self._state)
        self._sinks: list[MetricSink] = []

    async def run(self) -> TrainReport:
        """The whole run, from the newest checkpoint on."""
        from trainer_sink.reference.learner import Learner

        started = time.monotonic()
        settings = self._settings
        consumer = self._consumer()
        incoming = StepGroups(
            consumer, per_step=settings.groups_per_step, until_idle_s=settings.until_idle_s, stop=self._stop
        )
        loading = asyncio.create_task(asyncio.to_thread(Learner.load, settings, self._path))
        try:
            async with AsyncExitStack() as stack:
                learner = await loading
                last = self._state.last_report if self._state else None
                resumed = None if last is None else StepReport.from_json(last)
                self._sinks = await asyncio.to_thread(sinks, settings, resumed=resumed)
                for sink in self._sinks:
                    stack.callback(sink.close)
                await stack.enter_async_context(consumer)
                pushes = await stack.enter_async_context(pushing(self._bus, settings))
                if settings.push_at_start or self._state is not None:
                    # Brings the engines to this run's weights: after a crash, or where they began with others.
                    await pushes.push(self._path or settings.model, learner.digest)
                _log.info(
                    "training.started",
                    trainer_id=settings.trainer_id,
                    policy_id=settings.policy_id,
                    step=self._progress.step,
                    version=pushes.version,
                    resumed=str(self._path or ""),
                )
                while (reason := self._why_over(incoming)) is None:
                    waiting = time.monotonic()
                    groups = await incoming.collect()
                    if groups:
                        await self._train(consumer, learner, pushes, groups, time.monotonic() - waiting)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        return await self._finish(reason, pushes.version, time.monotonic() - started)

    def _consumer(self) -> GroupConsumer:
        settings = self._settings
        consumer = GroupConsumer(
            self._bus,
            settings.trainer_id,
            policy_id=settings.policy_id,
            task_ids=settings.task_ids,
            harness=settings.harness,
            max_policy_lag=settings.max_policy_lag,
            start=settings.start,
            max_lag=settings.max_lag,
            prefetch=settings.groups_per_step,
            until_end=settings.until_end,
        )
        if self._state is not None:
            if (self._state.trainer_id, self._state.policy_id) != (settings.trainer_id, settings.policy_id):
                raise CheckpointError(
                    f"{self._path} is of trainer {self._state.trainer_id!r} and policy {self._state.policy_id!r}, this run is "
                    f"{settings.trainer_id!r} and {settings.policy_id!r}: use another output directory"
                )
            consumer.load_state_dict(self._state.sink)
        return consumer

    def _why_over(self, incoming: StepGroups) -> Reason | None:
        return self._progress.enough() or incoming.ended or ("stopped" if self._stop.is_set() else None)

    # -- one step ----------------------------------------------------------------------------------------------------

    async def _train(
        self, consumer: GroupConsumer, learner: Learner, pushes: Pushes, groups: list[Group], waited: float
    ) -> None:
        step, version, begun = self._progress.step + 1, pushes.version, time.monotonic()
        counts: Counter[str] = Counter()
        sequences = await asyncio.to_thread(_sequences, groups, self._settings, counts)
        read = time.monotonic() - begun
        began = time.monotonic()
        stats = await asyncio.to_thread(learner.update, sequences, step, version, partial(self._judge, version))
        seconds = {"wait": waited, "read": read, "train": time.monotonic() - began}
        report = self._progress.trained(groups, version, counts=counts, seconds=seconds, stats=stats)

        async def save(sink: dict[str, Any]) -> None:
            began = time.monotonic()
            self._path = await asyncio.to_thread(
                self._checkpoints.write, step, learner.filler(self._state_after(report, sink))
            )
            seconds["save"] = time.monotonic() - began
            began = time.monotonic()
            if report.sequences:  # without an update the engines have these weights already
                await pushes.push(self._path, learner.digest)
            seconds["push"] = time.monotonic() - began

        await consumer.commit(
            step,
            groups=groups,
            policy_version=version,
            staleness_max=report.staleness_max,
            staleness_mean=report.staleness_mean,
            details={"reward": report.reward, "loss": report.loss, "tokens": report.tokens},
            save=save,
        )
        seconds["total"] = waited + time.monotonic() - begun
        await self._tell(report.published(pushes.version, seconds))

    def _state_after(self, report: StepReport, sink: dict[str, Any]) -> RunState:
        """What is beside the weights of a step; their digest is known once they are written."""
        return RunState(
            step=report.step,
            sink=sink,
            weights_digest="",
            from_version=report.from_version,
            rewards=self._progress.rewards,
            baseline=self._settings.baseline,
            last_report=report.to_json(),
            trainer_id=self._settings.trainer_id,
            policy_id=self._settings.policy_id,
        )

    def _judge(self, version: str, largest: float, where: str) -> None:
        """Called from the training thread, before the weights change."""
        settings = self._settings
        if largest <= settings.logprob_limit:
            return
        message = (
            f"recomputed logprobs differ from the captured ones by {largest:.2e} (limit {settings.logprob_limit:g}) under version "
            f"{version}, at {where}: the engine doesn't serve these weights in this precision, or the sampling temperature is "
            "another than the trainer knows (--temperature)"
        )
        if settings.on_mismatch == "stop":
            raise LogprobMismatchError(message, max_diff=largest, where=where)
        _log.warning("logprobs.differ", largest=largest, limit=settings.logprob_limit, where=where)

    async def _tell(self, report: StepReport) -> None:
        self._progress.published(report)
        for sink in self._sinks:
            await asyncio.to_thread(sink.add, report)
        if self._on_step is not None:
            self._on_step(report)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _finish(self, reason: Reason, version: str, seconds: float) -> TrainReport:
        progress = self._progress
        return TrainReport(
            steps=tuple(progress.reports),
            reason=reason,
            rewards=tuple(progress.rewards),
            baseline=progress.baseline,
            gain=progress.gain,
            version=version,
            checkpoint=self._path,
            max_logprob_diff=max((r.max_logprob_diff for r in progress.reports), default=0.0),
            seconds=seconds,
            plot=await asyncio.to_thread(self._plot),
        )

    def _plot(self) -> Path | None:
        if not self._settings.plot or not self._progress.rewards:
            return None
        try:
            path = self._settings.output_dir / PLOT
            return draw_rewards(self._progress.rewards, path, baseline=self._progress.baseline)
        except TrainerError as error:
            _log.warning("curve.missing", why=str(error))
            return None


def _sequences(groups: Sequence[Group], settings: GrpoSettings, counts: Counter[str]) -> list[TrainingSequence]:
    return [
        sequence
        for group in groups
        for sequence in sequences_of(group, settings.credit, leave_out=settings.leave_out, counts=counts)
    ]
