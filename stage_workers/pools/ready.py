"""READY: a prepared session waits for its lease, and goes when another worker got it or its time is over."""

from __future__ import annotations

import asyncio

from schemas.records import StageCommand
from stage_workers.errors import EndingKind, SessionOver
from stage_workers.kit import Kit
from stage_workers.sessions import Session


class ReadyPool:
    """Holds prepared sessions; its bound is kept where INIT commands are admitted."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    async def wait(self, session: Session) -> StageCommand:
        """The command to run.

        Raises:
            SessionOver: another worker was granted the lease, the INIT command expired, or the session was taken away.
        """
        while True:
            deadline_at = self._deadline_at(session)
            left_s = None if deadline_at is None else max(0.0, (deadline_at - self._kit.now_ms()) / 1000)
            try:
                async with asyncio.timeout(left_s):
                    # Shielded: a time-out must not cancel the future that the command comes through.
                    return await session.guard(asyncio.shield(session.run_command))
            except TimeoutError:
                if self._deadline_at(session) != deadline_at:
                    continue
                waited_for = "command to run" if session.granted_at else "lease"
                raise SessionOver(EndingKind.LOST, f"no {waited_for} came in time") from None

    def _deadline_at(self, session: Session) -> int | None:
        """Until when it waits: for a lease until its INIT command expires, then for the command to run."""
        if session.granted_at:
            return session.granted_at + int(self._kit.settings.run_command_wait_s * 1000)
        return session.expires_at or None
