"""The loop: collect groups, update, save weights with the position, push them to the engines, commit.

A step is saved before it is pushed and pushed before it is published. A kill anywhere leaves either the old checkpoint, from which
the step's groups come again, or the new one, which holds them: then the restart publishes the batch again and pushes the weights
under a further version. So each group is in the weights exactly once.
"""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import structlog

from bus import Bus
from trainer_sink.consumer import GroupConsumer
from trainer_sink.groups import Group
from trainer_sink.policies import PolicyWriter, PushFailedError
from trainer_sink.reference.checkpoints import Checkpoints, RunState
from trainer_sink.reference.errors import CheckpointError, LogprobMismatchError, RunInUseError, TrainerError
from trainer_sink.reference.metrics import MetricSink, sinks
from trainer_sink.reference.plot import draw_rewards
from trainer_sink.reference.reports import StepReport, TrainReport, average, baseline_of, has_gained
from trainer_sink.reference.settings import GrpoSettings
from trainer_sink.sequences import TrainingSequence, sequences_of
from trainer_sink.staleness import VersionOrder, staleness_of

_log = structlog.get_logger(__name__)

PLOT: Final = "rewards.png"
LOCK: Final = ".lock"
UNPUBLISHED: Final = "0"
"""What weights are called that no trainer has pushed: version 0 of the policy."""
RETRY_S: Final = 1.0
"""Before a push that an engine didn't take is tried again; doubled each time."""

OnStep = Callable[[StepReport], None]
Reason = Literal["max_steps", "gain", "idle", "end_of_log", "stopped"]
T = TypeVar("T")


async def train_grpo(
    bus: Bus, settings: GrpoSettings, *, on_step: OnStep | None = None, stop: asyncio.Event | None = None
) -> TrainReport:
    """Train until the settings' end, or until `stop` is set; `on_step` is told each step once it is published.

    The bus must be started. Raises RunInUseError, CheckpointError, ModelLoadError or TrainerError before the first step;
    `trainer_sink.policies.SupersededError` when another trainer took the policy over; LogprobMismatchError when asked to; and what
    the consumer and the bus raise. What was saved by then can be resumed.
    """
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    with _locked(settings.output_dir / LOCK):
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
        self._rewards: list[float] = [] if self._state is None else list(self._state.rewards)
        self._step = 0 if self._state is None else self._state.step
        self._version = UNPUBLISHED
        self._reports: list[StepReport] = []
        self._sinks: list[MetricSink] = []
        self._writer: PolicyWriter | None = None
        self._reason: Reason = "stopped"
        self._is_exhausted = False

    async def run(self) -> TrainReport:
        """The whole run, from the newest checkpoint on."""
        from trainer_sink.reference.learner import Learner

        started = time.monotonic()
        settings = self._settings
        consumer = self._consumer()
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
                if settings.push:
                    writer = PolicyWriter(self._bus, settings.policy_id, settings.trainer_id, engines=settings.engines)
                    self._writer = await stack.enter_async_context(writer)
                    await self._first_push(learner)
                _log.info(
                    "training.started",
                    trainer_id=settings.trainer_id,
                    policy_id=settings.policy_id,
                    step=self._step,
                    version=self._version,
                    resumed=str(self._path or ""),
                )
                while not self._is_over():
                    waiting = time.monotonic()
                    groups = await self._collect(consumer)
                    if groups:
                        await self._train(consumer, learner, groups, time.monotonic() - waiting)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        return await self._finish(time.monotonic() - started)

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

    # -- weights to the engines --------------------------------------------------------------------------------------

    async def _first_push(self, learner: Any) -> None:
        """Bring the engines to this run's weights: after a crash, or where they began with others."""
        assert self._writer is not None
        self._version = self._writer.version
        if self._settings.push_at_start or self._state is not None:
            await self._push(self._path or self._settings.model, learner.digest)

    async def _push(self, path: Path, digest: str) -> None:
        assert self._writer is not None
        for attempt in range(1, self._settings.push_attempts + 1):
            try:
                self._version = await self._writer.push(path, weights_digest=digest)
            except PushFailedError as error:
                if attempt == self._settings.push_attempts:
                    raise
                _log.warning("push.failed", attempt=attempt, error=str(error))
                await asyncio.sleep(RETRY_S * 2 ** (attempt - 1))
            else:
                return

    # -- one step ----------------------------------------------------------------------------------------------------

    async def _collect(self, consumer: GroupConsumer) -> list[Group]:
        """The next step's groups; fewer at the end of the log or when no more come, none when the run is to stop."""
        groups: list[Group] = []
        while len(groups) < self._settings.groups_per_step:
            try:
                group = await self._unless_stopped(anext(consumer))
            except StopAsyncIteration:
                self._reason, self._is_exhausted = "end_of_log", True
                return groups
            except TimeoutError:
                self._reason, self._is_exhausted = "idle", True
                return groups
            if group is None:
                return []  # not committed, so they come again
            groups.append(group)
        return groups

    async def _unless_stopped(self, work: Awaitable[T]) -> T | None:
        """What `work` gives; None when the run is stopped before; TimeoutError when it takes too long."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                {task, stopping}, timeout=self._settings.until_idle_s, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                return task.result()
            if stopping.done():
                return None
            raise TimeoutError
        finally:
            for one in (task, stopping):
                one.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    async def _train(self, consumer: GroupConsumer, learner: Any, groups: list[Group], waited: float) -> None:
        settings = self._settings
        step, begun = self._step + 1, time.monotonic()
        counts: Counter[str] = Counter()
        sequences = await asyncio.to_thread(_sequences, groups, settings, counts)
        read = time.monotonic() - begun
        began = time.monotonic()
        stats = await asyncio.to_thread(learner.update, sequences, step, self._version, self._judge)
        seconds = {"wait": waited, "read": read, "train": time.monotonic() - began}
        scored = [one for group in groups for one in group.scored]
        rewards = [one.reward for one in scored if one.reward is not None]
        staleness = staleness_of(scored, VersionOrder(), self._version)
        self._rewards.append(sum(rewards) / len(rewards) if rewards else 0.0)
        report = StepReport(
            step=step,
            version="",
            from_version=self._version,
            groups=len(groups),
            sessions=sum(len(group.scored) for group in groups),
            reward=self._rewards[-1],
            reward_average=average(self._rewards),
            gain=average(self._rewards) - baseline_of(self._rewards, settings.baseline),
            lr=settings.lr_at(step),
            staleness_max=staleness.max,
            staleness_mean=staleness.mean,
            counts=dict(counts),
            seconds=seconds,
            at=time.time_ns() // 1_000_000,
            **stats,
        )

        async def save(sink: dict[str, Any]) -> None:
            began = time.monotonic()
            state = RunState(
                step=step,
                sink=sink,
                weights_digest="",
                from_version=report.from_version,
                rewards=self._rewards,
                baseline=settings.baseline,
                last_report=report.to_json(),
                trainer_id=settings.trainer_id,
                policy_id=settings.policy_id,
            )
            self._path = await asyncio.to_thread(self._checkpoints.write, step, learner.filler(state))
            seconds["save"] = time.monotonic() - began
            began = time.monotonic()
            if (
                self._writer is not None and report.sequences
            ):  # without an update the engines have these weights already
                await self._push(self._path, learner.digest)
            seconds["push"] = time.monotonic() - began

        await consumer.commit(
            step,
            groups=groups,
            policy_version=report.from_version,
            staleness_max=report.staleness_max,
            staleness_mean=report.staleness_mean,
            details={"reward": report.reward, "loss": report.loss, "tokens": report.tokens},
            save=save,
        )
        seconds["total"] = waited + time.monotonic() - begun
        self._step = step
        await self._tell(report.published(self._version, seconds))

    def _judge(self, largest: float, where: str) -> None:
        """Called from the training thread, before the weights change."""
        settings = self._settings
        if largest <= settings.logprob_limit:
            return
        message = (
            f"recomputed logprobs differ from the captured ones by {largest:.2e} (limit {settings.logprob_limit:g}) under version "
            f"{self._version}, at {where}: the engine doesn't serve these weights in this precision, or the sampling temperature is "
            "another than the trainer knows (--temperature)"
        )
        if settings.on_mismatch == "stop":
            raise LogprobMismatchError(message, max_diff=largest, where=where)
        _log.warning("logprobs.differ", largest=largest, limit=settings.logprob_limit, where=where)

    async def _tell(self, report: StepReport) -> None:
        self._reports.append(report)
        for sink in self._sinks:
            await asyncio.to_thread(sink.add, report)
        if self._on_step is not None:
            self._on_step(report)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        settings = self._settings
        if settings.max_steps is not None and self._step >= settings.max_steps:
            self._reason = "max_steps"
            return True
        if settings.stop_at_gain is not None and has_gained(self._rewards, settings.baseline, settings.stop_at_gain):
            self._reason = "gain"
            return True
        return self._is_exhausted or self._stop.is_set()

    async def _finish(self, seconds: float) -> TrainReport:
        baseline = baseline_of(self._rewards, self._settings.baseline)
        return TrainReport(
            steps=tuple(self._reports),
            reason=self._reason,
            rewards=tuple(self._rewards),
            baseline=baseline,
            gain=average(self._rewards) - baseline if self._rewards else 0.0,
            version=self._version,
            checkpoint=self._path,
            max_logprob_diff=max((r.max_logprob_diff for r in self._reports), default=0.0),
            seconds=seconds,
            plot=await asyncio.to_thread(self._plot, baseline),
        )

    def _plot(self, baseline: float) -> Path | None:
        if not self._settings.plot or not self._rewards:
            return None
        try:
            return draw_rewards(self._rewards, self._settings.output_dir / PLOT, baseline=baseline)
        except TrainerError as error:
            _log.warning("curve.missing", why=str(error))
            return None


def _sequences(groups: Sequence[Group], settings: GrpoSettings, counts: Counter[str]) -> list[TrainingSequence]:
    return [
        sequence
        for group in groups
        for sequence in sequences_of(group, settings.credit, leave_out=settings.leave_out, counts=counts)
    ]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Nobody else trains in this directory meanwhile; the lock goes with the process."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RunInUseError(
                f"another process trains in {path.parent}: wait for it, or use another output directory"
            ) from exc
        yield
