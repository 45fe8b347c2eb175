"""POSTRUN: the task's `post_run` steps, then the evaluator within its own budget; its rewards are told before `graded`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from schemas.records import Boundary, Reward, SessionEventType, Stage, Status, Trajectory
from stage_workers import evaluators
from stage_workers.built import BACK_MS, wait_for_trajectory
from stage_workers.errors import EndingKind, SessionOver, StageFault
from stage_workers.evaluators import Artifacts, EvaluationContext, EvaluatorError, Grade
from stage_workers.fresh import FreshRuntime
from stage_workers.kit import Kit
from stage_workers.sessions import Outcome, Session
from stage_workers.steps import run_steps

log = structlog.get_logger(__name__)

_LOGS = {"stdout.log": "harness.stdout.log", "stderr.log": "harness.stderr.log"}
_HIDDEN = b"[secret]"


@dataclass(slots=True)
class _Grading:
    """One session's grading while it goes on."""

    artifacts: Artifacts
    started_at: int
    rewards: list[Reward] = field(default_factory=list)


class PostrunPool:
    """Grades sessions, at most `postrun_slots` at a time."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._slots = asyncio.Semaphore(kit.settings.postrun_slots)

    def prewarm(self, session: Session) -> None:
        """Begins on the evaluator's fresh runtime, if it wants one; what goes wrong there is told when it is needed."""
        if evaluators.wants_fresh(session.task.evaluator):
            name = f"{session.session_id}.{session.attempt}.{session.round}.eval"
            session.fresh = FreshRuntime(self._kit.runtimes, session.task, name)
            session.fresh.begin()

    async def run(self, session: Session) -> None:
        """Grades a session and tells it.

        Raises:
            SessionOver: it was taken away before it was graded.
        """
        await session.guard(self._slots.acquire())
        try:
            session.stage = Stage.POSTRUN
            self._kit.nudge()
            await self._grade(session)
        finally:
            self._slots.release()

    async def _grade(self, session: Session) -> None:
        kept_s = self._kit.settings.artifact_retention_s
        now = self._kit.now_ms()
        until = now + int(kept_s * 1000) if kept_s else 0
        grading = _Grading(Artifacts(self._kit.bus.blobs, session.session_id, kept_until=until), now)
        try:
            await session.guard(self._evaluated(session, grading))
        except SessionOver as over:
            if over.kind is EndingKind.DEADLINE:
                self._tell(session, grading, StageFault(Boundary.EVALUATOR, over.reason, Status.TIMEOUT))
            elif over.kind is EndingKind.CANCELLED:
                self._tell(session, grading, StageFault(Boundary.NONE, over.reason, Status.CANCELLED))
            raise
        except StageFault as fault:
            self._tell(session, grading, fault)
        except Exception as error:  # stage boundary: a grader's crash is a fact, never the worker's end
            log.exception("grading.crashed", session_id=session.session_id, lease_id=session.lease_id)
            self._tell(session, grading, StageFault(Boundary.EVALUATOR, f"the evaluator crashed: {error!r}"))
        else:
            self._tell(session, grading)

    async def _evaluated(self, session: Session, grading: _Grading) -> None:
        task, runtime = session.task, session.runtime
        if runtime is None:
            raise StageFault(Boundary.SANDBOX, "the session has no runtime any more")
        budget_s = task.budgets.postrun_s
        try:
            async with asyncio.timeout(budget_s):
                await self._keep_logs(session, grading.artifacts)
                await run_steps(runtime, task.post_run, "post_run", Boundary.SANDBOX)
        except TimeoutError:
            text = f"post_run took longer than budgets.postrun_s ({budget_s:g} s)"
            raise StageFault(Boundary.SANDBOX, text, Status.TIMEOUT) from None
        budget_s = task.budgets.evaluate_s
        try:
            async with asyncio.timeout(budget_s):
                fresh = await session.fresh.ready() if session.fresh is not None else None
                if fresh is None:
                    await run_steps(runtime, task.eval_prepare, "eval_prepare", Boundary.EVALUATOR)
                evaluator = evaluators.get(task.evaluator.name, task.evaluator.options)
                context = EvaluationContext(
                    session_id=session.session_id,
                    task=task,
                    runtime=runtime,
                    fresh=fresh,
                    status=(session.outcome or Outcome(status=Status.UNKNOWN)).status,
                    exit_code=session.outcome.exit_code if session.outcome else None,
                    evaluate_s=budget_s,
                    artifacts=grading.artifacts,
                    trajectory=lambda: self._trajectory(session),
                )
                grading.rewards = self._rewards(session, grading, await evaluator.evaluate(context))
        except TimeoutError:
            text = f"the evaluator took longer than budgets.evaluate_s ({budget_s:g} s)"
            raise StageFault(Boundary.EVALUATOR, text, Status.TIMEOUT) from None
        except EvaluatorError as error:
            raise StageFault(Boundary.EVALUATOR, str(error)) from error

    async def _trajectory(self, session: Session) -> Trajectory:
        since = max(0, session.granted_at - BACK_MS)
        return await wait_for_trajectory(self._kit.bus, session.session_id, session.lease_id, since=since)

    async def _keep_logs(self, session: Session, artifacts: Artifacts) -> None:
        """What the harness printed. Its lease is over, but the secret of one is nobody's business all the same."""
        secret = session.lease.secret.encode() if session.lease else b""
        for file, name in _LOGS.items():
            path = self._kit.log_dir(session) / file
            if path.is_file() and (data := await asyncio.to_thread(path.read_bytes)):
                await artifacts.keep(name, data.replace(secret, _HIDDEN) if secret else data)

    def _rewards(self, session: Session, grading: _Grading, grades: list[Grade]) -> list[Reward]:
        name = session.task.evaluator.name
        return evaluators.rewards_of(
            grades,
            session_id=session.session_id,
            lease_id=session.lease_id,
            spec=session.spec,
            grader=name,
            grader_version=evaluators.version_of(name),
            artifacts=grading.artifacts.details,
            at=self._kit.now_ms(),
        )

    def _tell(self, session: Session, grading: _Grading, fault: StageFault | None = None) -> None:
        if session.is_lost:
            return
        if fault is not None:
            log.warning(
                "grading.failed", session_id=session.session_id, boundary=str(fault.boundary), error=fault.error
            )
        rewards = [] if fault else grading.rewards
        self._kit.facts.put(*rewards)
        details = {"evaluate_ms": self._kit.now_ms() - grading.started_at, "evaluator": session.task.evaluator.name}
        if kept := grading.artifacts.details:
            details["artifacts"] = kept
        self._kit.tell(
            session,
            SessionEventType.GRADED,
            stage=Stage.POSTRUN,
            status=fault.status if fault else Status.COMPLETED,
            boundary=fault.boundary if fault else Boundary.NONE,
            error=fault.error if fault else "",
            rewards=[reward.name for reward in rewards],
            expects_reward=bool(rewards),
            details=details,
        )
