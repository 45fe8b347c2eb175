"""Sessions: list, look at one, cancel one, and its trajectory."""

from __future__ import annotations

import asyncio
from itertools import dropwhile, islice
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query

from compose.api import models
from compose.api.bodies import JsonRoute
from compose.api.context import Ready
from compose.api.control import ask
from compose.api.problems import ApiError, ApiResponse, responses
from compose.api.reading import Arrays, result_json, trajectory_json
from compose.api.render import fact_json, session_json
from compose.api.rows import SessionRow
from schemas.records import ControlAction, ScoredTrajectory

router = APIRouter(prefix="/api/sessions", tags=["sessions"], route_class=JsonRoute)

StageName = Literal["queued", "init", "ready", "running", "sealed", "postrun", "ended"]


@router.get("", response_model=models.SessionPage, responses=responses(404, 422))
async def sessions(
    context: Ready,
    task_id: Annotated[str | None, Query(description="only of this task")] = None,
    stage: Annotated[StageName | None, Query(description="only in this stage")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(description="the `next` of the page before")] = None,
) -> ApiResponse:
    """The sessions that are known, oldest first."""
    rows = context.task(task_id).sessions() if task_id is not None else iter(context.views.rows.sessions.values())
    if after is not None:
        context.session(after)
        rows = islice(dropwhile(lambda row: row.session_id != after, rows), 1, None)
    found = []
    for row in rows:
        if stage is None or row.stage_now == stage:
            found.append(session_json(row))
        if len(found) > limit:
            break
    page = found[:limit]
    return ApiResponse({"sessions": page, "next": page[-1]["session_id"] if len(found) > limit else None})


@router.get("/{session_id}", response_model=models.SessionDetail, responses=responses(404, 422))
async def session(session_id: str, context: Ready) -> ApiResponse:
    """A session with its facts in order and, once it is scored, its counts and rewards."""
    row = context.session(session_id)
    facts = await context.reading.facts(row)
    scored = await context.reading.scored([row])
    detail = {**session_json(row), "facts": [fact_json(f) for f in facts]}
    return ApiResponse({**detail, "result": result_json(scored[0]) if scored else None})


@router.post(
    "/{session_id}/cancel", status_code=202, response_model=models.CancelRequested, responses=responses(404, 422)
)
async def cancel(
    session_id: str, context: Ready, body: Annotated[models.CancelBody | None, Body()] = None
) -> ApiResponse:
    """Cancel a session; it ends once, as cancelled, with what it has."""
    row = context.session(session_id)
    if not row.is_ended:
        await ask(context, ControlAction.CANCEL, session_id, "session", (body or models.CancelBody()).reason)
    return ApiResponse({"target": session_id, "sessions": int(not row.is_ended)}, 202)


@router.get("/{session_id}/trajectory", response_model=models.Trajectory, responses=responses(404, 422))
async def trajectory(
    session_id: str,
    context: Ready,
    arrays: Annotated[Arrays, Query(description="token arrays as JSON lists, or base64 of their bytes")] = "list",
) -> ApiResponse:
    """A session's whole result: its traces with token ids, loss masks and logprobs."""
    row = context.session(session_id)
    scored = await context.reading.scored([row])
    if not scored:
        raise _not_there(row)
    return await asyncio.to_thread(_rendered, scored[0], arrays)


def _rendered(scored: ScoredTrajectory, arrays: Arrays) -> ApiResponse:
    return ApiResponse(trajectory_json(scored, arrays))


def _not_there(row: SessionRow) -> ApiError:
    if row.result is None:
        return ApiError(
            404, f"session {row.session_id} isn't scored yet: it is {row.stage}", hint="ask again once it has ended"
        )
    return ApiError(
        404, f"the trajectory of session {row.session_id} isn't on the log any more", hint="look into the archive"
    )
