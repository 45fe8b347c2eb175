"""POSTRUN: the task's `post_run` steps, then the evaluator within its own budget; its rewards are told before `graded`."""

from __future__ import annotations

import asyncio

import orjson
import structlog

from schemas import ids
from schemas.records import Boundary, Reward, SessionEventType, Stage, Status
from stage_workers import evaluators
from stage_workers.errors import EndingKind, SessionOver, StageFault
from stage_workers.evaluators import EvaluationContext, EvaluatorError, Grade
from stage_workers.kit import Kit
from stage_workers.sessions import Outcome, Session
from stage_workers.steps import run_steps

log = structlog.get_logger(__name__)


class PostrunPool:
    """Grades sessions, at most `postrun_slots` at a time."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._slots = asyncio.Semaphore(kit.settings.postrun_slots)

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
        try:
            grades = await session.guard(self._evaluated(session))
        except SessionOver as over:
            if over.kind is EndingKind.DEADLINE:
                self._tell(session, StageFault(Boundary.EVALUATOR, over.reason, Status.TIMEOUT))
            elif over.kind is EndingKind.CANCELLED:
                self._tell(session, StageFault(Boundary.NONE, over.reason, Status.CANCELLED))
            raise
        except StageFault as fault:
            self._tell(session, fault)
        except Exception as error:  # stage boundary: a grader's crash is a fact, never the worker's end
            log.exception("grading.crashed", session_id=session.session_id, lease_id=session.lease_id)
            self._tell(session, StageFault(Boundary.EVALUATOR, f"the evaluator crashed: {error!r}"))
        else:
            self._tell_grades(session, grades)

    async def _evaluated(self, session: Session) -> list[Grade]:
        task, runtime = session.task, session.runtime
        if runtime is None:
            raise StageFault(Boundary.SANDBOX, "the session has no runtime any more")
        budget_s = task.budgets.postrun_s
        try:
            async with asyncio.timeout(budget_s):
                await run_steps(runtime, task.post_run, "post_run", Boundary.SANDBOX)
        except TimeoutError:
            text = f"post_run took longer than budgets.postrun_s ({budget_s:g} s)"
            raise StageFault(Boundary.SANDBOX, text, Status.TIMEOUT) from None
        budget_s = task.budgets.evaluate_s
        try:
            async with asyncio.timeout(budget_s):
                await run_steps(runtime, task.eval_prepare, "eval_prepare", Boundary.EVALUATOR)
                evaluator = evaluators.get(task.evaluator.name, task.evaluator.options)
                return await evaluator.evaluate(self._context(session))
        except TimeoutError:
            text = f"the evaluator took longer than budgets.evaluate_s ({budget_s:g} s)"
            raise StageFault(Boundary.EVALUATOR, text, Status.TIMEOUT) from None
        except EvaluatorError as error:
            raise StageFault(Boundary.EVALUATOR, str(error)) from error

    def _context(self, session: Session) -> EvaluationContext:
        outcome = session.outcome or Outcome(status=Status.UNKNOWN)
        if session.runtime is None:
            raise StageFault(Boundary.SANDBOX, "the session has no runtime any more")
        return EvaluationContext(
            session_id=session.session_id,
            task=session.task,
            runtime=session.runtime,
            status=outcome.status,
            exit_code=outcome.exit_code,
            evaluate_s=session.task.budgets.evaluate_s,
        )

    def _tell_grades(self, session: Session, grades: list[Grade]) -> None:
        spec, name = session.spec, session.task.evaluator.name
        options = orjson.dumps(spec.builder_options or {}, option=orjson.OPT_SORT_KEYS).decode()
        if session.is_lost:
            return
        self._kit.facts.put(
            *(
                Reward(
                    session_id=session.session_id,
                    lease_id=session.lease_id,
                    trajectory_id=ids.trajectory_id(session.session_id, session.lease_id, spec.builder, options),
                    name=grade.name,
                    value=grade.value,
                    grader=name,
                    grader_version=evaluators.version_of(name),
                    details=dict(grade.details),
                    at=self._kit.now_ms(),
                )
                for grade in grades
            )
        )
        self._kit.tell(
            session,
            SessionEventType.GRADED,
            stage=Stage.POSTRUN,
            status=Status.COMPLETED,
            rewards=[grade.name for grade in grades],
            expects_reward=bool(grades),
        )

    def _tell(self, session: Session, fault: StageFault) -> None:
        log.warning("grading.failed", session_id=session.session_id, boundary=str(fault.boundary), error=fault.error)
        self._kit.tell(
            session,
            SessionEventType.GRADED,
            stage=Stage.POSTRUN,
            status=fault.status,
            boundary=fault.boundary,
            error=fault.error,
            expects_reward=False,
        )
