"""RUNNING: open the lease, launch the harness, enforce the deadline, kill, tell `finished`, seal at once, tell `sealed`."""

from __future__ import annotations

import asyncio
import secrets

import structlog

import harnesses
from schemas.records import Boundary, SessionEventType, Stage, StageCommand, Status
from stage_workers.errors import EndingKind, SessionOver, StageFault
from stage_workers.keeper import keeping
from stage_workers.kit import Kit
from stage_workers.launch import launch
from stage_workers.leases import seal_leases
from stage_workers.runtimes import RuntimeFault
from stage_workers.sessions import Outcome, Session

log = structlog.get_logger(__name__)

# 256 bits, as text that needs no escaping in a URL's path.
_SECRET_BYTES = 32


class RunningPool:
    """Runs harnesses, at most `run_slots` at a time; a command beyond that waits in line, still in READY."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._slots = asyncio.Semaphore(kit.settings.run_slots)

    async def run(self, session: Session, command: StageCommand) -> None:
        """Takes a session from its run command to `sealed`.

        Raises:
            SessionOver: it was taken away before it began, or its lease was lost (then nothing more was told).
        """
        session.lease_id = command.lease_id
        try:
            await session.guard(self._slots.acquire())
        except SessionOver as over:
            await self.give_up(session, over)
            raise
        try:
            session.stage = Stage.RUNNING
            self._kit.nudge()
            outcome = await self._outcome(session, command)
            await self._finish(session, outcome)
        finally:
            self._slots.release()

    async def give_up(self, session: Session, over: SessionOver) -> None:
        """Tells of a granted lease that was never used, unless it is another's by now."""
        if session.lease_id and over.kind not in {EndingKind.LOST, EndingKind.SHUTDOWN}:
            await self._finish(session, _outcome_of(over))

    async def _outcome(self, session: Session, command: StageCommand) -> Outcome:
        try:
            return await session.guard(self._attempt(session, command))
        except SessionOver as over:
            if session.is_lost:
                raise
            return _outcome_of(over)
        except StageFault as fault:
            return Outcome(status=fault.status, boundary=fault.boundary, error=fault.error)
        except harnesses.HarnessError as error:
            return Outcome(status=Status.FAILED, boundary=Boundary.HARNESS, error=str(error))
        except Exception as error:  # stage boundary: a session's failure is a fact, never the worker's end
            log.exception("run.crashed", session_id=session.session_id, lease_id=session.lease_id)
            return Outcome(status=Status.FAILED, boundary=Boundary.SANDBOX, error=f"the run failed: {error!r}")

    async def _attempt(self, session: Session, command: StageCommand) -> Outcome:
        kit = self._kit
        runtime = session.runtime
        if runtime is None:
            raise StageFault(Boundary.SANDBOX, "the session was never prepared")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        try:
            async with keeping(kit, session, secret, runtime) as keeper:
                kit.tell(
                    session,
                    SessionEventType.STARTED,
                    stage=Stage.RUNNING,
                    writers=list(session.writers),
                    details={"proxy": session.leases[0].node.node_id, "is_trusted": runtime.is_trusted},
                )
                run_s = self._run_s(session, command)
                return await keeper.until_broken(launch(kit, session, keeper, secret, run_s))
        except RuntimeFault as error:
            raise StageFault(Boundary.SANDBOX, str(error)) from error

    async def _finish(self, session: Session, outcome: Outcome) -> None:
        kit = self._kit
        session.outcome = outcome
        log.info(
            "run.finished",
            session_id=session.session_id,
            attempt=session.attempt,
            status=str(outcome.status),
            boundary=str(outcome.boundary),
            exit_code=outcome.exit_code,
            error=outcome.error[:300],
        )
        kit.tell(
            session,
            SessionEventType.FINISHED,
            stage=Stage.RUNNING,
            status=outcome.status,
            boundary=outcome.boundary,
            exit_code=outcome.exit_code,
            error=outcome.error,
            writers=list(session.writers),
            details={"logs": str(kit.log_dir(session))},
        )
        is_sealed = not session.leases or await seal_leases(kit, session, str(outcome.status))
        session.stage = Stage.SEALED
        kit.tell(
            session,
            SessionEventType.SEALED,
            stage=Stage.SEALED,
            writers=list(session.writers),
            details={"is_sealed_at_proxy": is_sealed},
        )

    def _run_s(self, session: Session, command: StageCommand) -> float:
        run_s = session.task.budgets.run_s
        if command.deadline_at:
            run_s = min(run_s, (command.deadline_at - self._kit.now_ms()) / 1000)
        return max(0.0, run_s)


def _outcome_of(over: SessionOver) -> Outcome:
    if over.kind is EndingKind.DEADLINE:
        return Outcome(status=Status.TIMEOUT, boundary=Boundary.HARNESS, error=over.reason)
    return Outcome(status=Status.CANCELLED, error=over.reason)
