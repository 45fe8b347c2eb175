"""INIT: make the session's place, see that its harness is installed, do the task's `prepare` steps."""

from __future__ import annotations

import asyncio

import structlog

import harnesses
from schemas.records import Boundary, SessionEventType, Stage, Status
from stage_workers import evaluators
from stage_workers.errors import SessionOver, StageFault
from stage_workers.kit import Kit
from stage_workers.runtimes import RuntimeFault
from stage_workers.sessions import Session
from stage_workers.steps import run_steps

log = structlog.get_logger(__name__)


class InitPool:
    """Prepares sessions; how many at a time is decided where commands are admitted."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    async def run(self, session: Session) -> bool:
        """Brings a session to READY and tells `ready`; tells `init_failed` and returns False where that can't be.

        Raises:
            SessionOver: the session was taken away meanwhile.
        """
        budget_s = session.task.budgets.init_s
        try:
            async with asyncio.timeout(budget_s):
                await session.guard(self._prepare(session))
        except SessionOver:
            raise
        except StageFault as fault:
            return self._failed(session, fault)
        except TimeoutError:
            return self._failed(
                session,
                StageFault(Boundary.SANDBOX, f"INIT took longer than budgets.init_s ({budget_s:g} s)", Status.TIMEOUT),
            )
        except Exception as error:  # stage boundary: a session's failure is a fact, never the worker's end
            log.exception("init.crashed", session_id=session.session_id, attempt=session.attempt)
            return self._failed(session, StageFault(Boundary.SANDBOX, f"INIT failed: {error!r}"))
        session.stage = Stage.READY
        self._kit.tell(session, SessionEventType.READY, stage=Stage.READY)
        return True

    async def _prepare(self, session: Session) -> None:
        task = session.task
        try:
            session.adapter = harnesses.get(task.harness.name, task.harness.version)
            harnesses.validate(task.harness.name, task.harness.options, task.harness.version)
            session.installed = await asyncio.to_thread(self._kit.install, session.adapter)
        except harnesses.HarnessError as error:
            raise StageFault(Boundary.HARNESS, str(error)) from error
        try:
            evaluators.check(task.evaluator)
        except evaluators.EvaluatorError as error:
            # Now, and not after the run: what the grading needs must be here.
            raise StageFault(Boundary.EVALUATOR, str(error)) from error
        try:
            name = session.runtime_name
            session.runtime = self._kit.runtimes(task.runtime, name)
            await session.runtime.start()
        except RuntimeFault as error:
            raise StageFault(Boundary.SANDBOX, str(error)) from error
        await run_steps(session.runtime, task.prepare, "prepare", Boundary.SANDBOX)

    def _failed(self, session: Session, fault: StageFault) -> bool:
        log.warning("init.failed", session_id=session.session_id, attempt=session.attempt, error=fault.error)
        self._kit.tell(
            session,
            SessionEventType.INIT_FAILED,
            stage=Stage.INIT,
            status=fault.status,
            boundary=fault.boundary,
            error=fault.error,
        )
        return False
