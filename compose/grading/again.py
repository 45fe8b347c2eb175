"""Grading sessions again: from their artifacts and trajectories, in fresh runtimes; new verdicts are new facts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from bus import Bus
from compose.grading.past import PastSession, trajectory_of
from schemas.records import Reward, Status, Trajectory
from schemas.task import EvaluatorSpec, TaskSpec
from stage_workers import evaluators
from stage_workers.errors import StageFault
from stage_workers.evaluators import Artifacts, EvaluationContext, EvaluatorError
from stage_workers.fresh import FreshRuntime
from stage_workers.runtimes import RuntimeFactory

log = structlog.get_logger(__name__)

PROVENANCE = "regrade"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """What became of one session: its verdicts, which of them are news, or why there are none."""

    session: PastSession
    rewards: list[Reward] = field(default_factory=list)
    news: list[Reward] = field(default_factory=list)
    error: str = ""


class Regrading:
    """One grading of many sessions; `run` is its name, which its rewards carry."""

    def __init__(
        self,
        bus: Bus,
        runtimes: RuntimeFactory,
        *,
        artifact_retention_s: float,
        is_dry: bool = False,
        run: str | None = None,
    ) -> None:
        """`is_dry`: nothing is published, and no artifact kept."""
        self._bus = bus
        self._runtimes = runtimes
        self._retention_s = artifact_retention_s
        self._is_dry = is_dry
        self.run = run or uuid.uuid4().hex

    async def grade_all(
        self,
        sessions: Sequence[PastSession],
        evaluator: EvaluatorSpec | None,
        *,
        at_once: int = 1,
        on_done: Callable[[Regraded], None] = lambda _: None,
    ) -> list[Regraded]:
        """Grades them, at most `at_once` at a time; without an evaluator each by its task's own."""
        slots = asyncio.Semaphore(at_once)

        async def one(session: PastSession) -> Regraded:
            async with slots:
                done = await self.grade(session, evaluator)
            on_done(done)
            return done

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(session)) for session in sessions]
        return [task.result() for task in tasks]

    async def grade(self, session: PastSession, evaluator: EvaluatorSpec | None) -> Regraded:
        """Grades one and publishes what is new of it; a failure is its `error`."""
        if session.task is None or session.why_not:
            return Regraded(session=session, error=session.why_not or "its task isn't on the log any more")
        task = session.task.model_copy(update={"evaluator": effective(session.task, evaluator)})
        try:
            rewards = await self._rewards(session, task)
        except (EvaluatorError, StageFault) as error:
            return Regraded(session=session, error=str(error))
        except Exception as error:  # session boundary: one evaluator's crash must not end the others' gradings
            log.exception("grading.crashed", session_id=session.session_id, lease_id=session.lease_id)
            return Regraded(session=session, error=f"the evaluator crashed: {error!r}")
        news = [reward for reward in rewards if is_news(reward, session.rewards.get(reward.name))]
        for reward in [] if self._is_dry else news:
            await self._bus.publish(reward)
        return Regraded(session=session, rewards=rewards, news=news)

    async def _rewards(self, session: PastSession, task: TaskSpec) -> list[Reward]:
        now = int(time.time() * 1000)
        artifacts = Artifacts(
            self._bus.blobs,
            session.session_id,
            kept_until=now + int(self._retention_s * 1000) if self._retention_s else 0,
            earlier=session.artifacts,
            reads_only=self._is_dry,
        )
        finished = session.finished.get(session.lease_id)

        async def built() -> Trajectory:
            return await trajectory_of(self._bus, session)

        fresh = None
        if evaluators.wants_fresh(task.evaluator):
            fresh = FreshRuntime(self._runtimes, task, f"{session.session_id}.{self.run[:8]}")
        budget_s = task.budgets.evaluate_s
        try:
            evaluator = evaluators.get(task.evaluator.name, task.evaluator.options)
            runtime = await fresh.ready() if fresh else None
            async with asyncio.timeout(budget_s):
                grades = await evaluator.evaluate(
                    EvaluationContext(
                        session_id=session.session_id,
                        task=task,
                        runtime=None,
                        fresh=runtime,
                        status=finished.status if finished else Status.UNKNOWN,
                        exit_code=finished.exit_code if finished else None,
                        evaluate_s=budget_s,
                        artifacts=artifacts,
                        trajectory=built,
                    )
                )
        except TimeoutError:
            raise EvaluatorError(f"it took longer than budgets.evaluate_s ({budget_s:g} s)") from None
        finally:
            if fresh is not None:
                await fresh.discard()
        return evaluators.rewards_of(
            grades,
            session_id=session.session_id,
            lease_id=session.lease_id,
            spec=session.spec,
            grader=task.evaluator.name,
            grader_version=evaluators.version_of(task.evaluator.name),
            artifacts=artifacts.details,
            provenance=PROVENANCE,
            run=self.run,
            at=now,
        )


def effective(task: TaskSpec, asked: EvaluatorSpec | None) -> EvaluatorSpec:
    """The evaluator to grade by: the task's own, or the one asked for.

    Of the same name it grades where the task's does, with the task's options unless it has its own. Asked to grade in a fresh
    runtime, it gets the one that the task describes for grading.
    """
    own = task.evaluator
    if asked is None:
        return own
    if asked.name != own.name:
        return asked.model_copy(update={"runtime": own.runtime}) if asked.fresh and asked.runtime is None else asked
    where = {"fresh": own.fresh if asked.fresh is None else asked.fresh, "runtime": asked.runtime or own.runtime}
    return asked.model_copy(update={"options": asked.options or own.options, **where})


def is_news(reward: Reward, known: Reward | None) -> bool:
    """Whether a verdict says something else than the newest one of its name."""
    if known is None:
        return True
    return any(
        getattr(reward, name) != getattr(known, name) for name in ("value", "trace_rewards", "grader", "grader_version")
    )
