"""One session from its INIT command to its teardown, as a straight line through the pools."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from schemas.records import StageCommand
from stage_workers.errors import EndingKind, SessionOver
from stage_workers.kit import Kit
from stage_workers.pools.init import InitPool
from stage_workers.pools.postrun import PostrunPool
from stage_workers.pools.ready import ReadyPool
from stage_workers.pools.running import RunningPool
from stage_workers.sessions import Session

log = structlog.get_logger(__name__)


class Flow:
    """Takes sessions through the pools; one task per session, all references kept."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._init = InitPool(kit)
        self._ready = ReadyPool(kit)
        self._running = RunningPool(kit)
        self._postrun = PostrunPool(kit)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, session: Session) -> None:
        """Takes a session in and starts on its INIT."""
        self._kit.holdings.add(session)
        task = asyncio.create_task(self._live(session), name=f"session-{session.session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._kit.nudge()

    async def drained(self) -> None:
        """Returns when no session is held any more."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _live(self, session: Session) -> None:
        async with self._torn_down(session):
            try:
                if not await self._init.run(session):
                    return
                command = await self._command(session)
                self._postrun.prewarm(session)
                await self._running.run(session, command)
                if session.ending is not None and session.ending.kind is EndingKind.OVER:
                    return
                # A cancelled run is sealed; its grading, if there is to be one, comes by command all the same.
                session.revive()
                await session.guard(asyncio.shield(session.postrun_command))
                await self._postrun.run(session)
            except SessionOver as over:
                log.info(
                    "session.let_go",
                    session_id=session.session_id,
                    attempt=session.attempt,
                    stage=str(session.stage),
                    kind=str(over.kind),
                    reason=over.reason,
                )
            except Exception:  # stage boundary: one session's trouble must not reach the others
                log.exception("session.crashed", session_id=session.session_id, attempt=session.attempt)

    async def _command(self, session: Session) -> StageCommand:
        try:
            return await self._ready.wait(session)
        except SessionOver as over:
            await self._running.give_up(session, over)
            raise

    @contextlib.asynccontextmanager
    async def _torn_down(self, session: Session) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if session.runtime is not None and not self._kit.settings.keep_work:
                await session.runtime.stop()
            if session.fresh is not None:
                await session.fresh.discard()
            self._kit.holdings.remove(session)
            self._kit.nudge()
