"""What the routes share: one bus, one view, one reader, found on the application."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from bus import Bus
from compose.api.problems import not_found, not_now
from compose.api.reading import LogReading
from compose.api.rows import SessionRow, TaskRow
from compose.api.settings import ApiSettings
from compose.api.submit import Submissions
from compose.api.views import Views


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one API process."""

    settings: ApiSettings
    bus: Bus
    views: Views
    reading: LogReading
    submissions: Submissions

    def task(self, task_id: str) -> TaskRow:
        """A task's row; 404 when it isn't known."""
        row = self.views.rows.tasks.get(task_id)
        if row is None:
            is_gone = self.views.rows.is_forgotten(task_id)
            why = "it ended and was forgotten; its trajectories are in the archive" if is_gone else "GET /api/sessions"
            raise not_found("task", task_id, hint=why)
        return row

    def session(self, session_id: str) -> SessionRow:
        """A session's row; 404 when it isn't known."""
        row = self.views.rows.sessions.get(session_id)
        if row is None:
            raise not_found("session", session_id, hint="GET /api/sessions lists those that are known")
        return row


async def caught_up(request: Request) -> Context:
    """The context, once the log has been read after a start; 503 when that takes longer than a caller should wait."""
    context: Context = request.app.state.context
    if not context.views.is_caught_up:
        try:
            async with asyncio.timeout(context.settings.caught_up_within_s):
                await context.views.wait_caught_up()
        except TimeoutError as late:
            problems = "; ".join(context.views.problems)
            raise not_now(
                f"this API has just started and still reads the log{': ' + problems if problems else ''}"
            ) from late
    return context


Ready = Annotated[Context, Depends(caught_up)]
