"""Tasks: submit, follow, cancel, and what came of them."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from pydantic import ValidationError

from compose.api import models
from compose.api.bodies import JsonRoute, read_json
from compose.api.context import Ready
from compose.api.control import ask
from compose.api.problems import ApiError, ApiResponse, field_problems, responses
from compose.api.reading import Arrays, result_json, trajectory_json
from compose.api.render import task_json
from compose.api.rows import SessionRow, TaskRow
from compose.api.submit import SubmittedTask, accepted
from schemas.records import ControlAction, ScoredTrajectory

router = APIRouter(prefix="/api/tasks", tags=["tasks"], route_class=JsonRoute)

MOST_TASKS = 10_000
JSON_LINES = "application/x-ndjson"

Limit = Annotated[int, Query(ge=1, le=64, description="how many at most; a page also ends at a size in bytes")]
After = Annotated[int, Query(ge=-1, le=2**53, description="the `next` of the page before")]

_TASK_LIST: dict[str, Any] = {"type": "array", "items": {"$ref": "#/components/schemas/SubmittedTask"}, "minItems": 1}


@router.post("", status_code=202, response_model=models.Accepted, responses=responses(409, 413, 422))
async def submit(task: SubmittedTask, context: Ready) -> ApiResponse:
    """Submit one task, as in a task file; answered once it stands durably on the log.

    The same specification under the same `task_id` again is the same task and gets the same answer, whichever API is asked.
    """
    (request,) = await context.submissions.submit([task])
    return ApiResponse(accepted(request), 202)


@router.post(
    "/batch",
    status_code=202,
    response_model=models.AcceptedBatch,
    responses=responses(409, 413, 415, 422),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _TASK_LIST},
                JSON_LINES: {"schema": {"type": "string", "description": "one task a line"}},
            },
        }
    },
)
async def submit_batch(request: Request, context: Ready) -> ApiResponse:
    """Submit many tasks, as a JSON list or one JSON object a line. Nothing is submitted unless every task is valid."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    specs, places = await asyncio.to_thread(_batch, kind, await request.body())
    requests = await context.submissions.submit(specs, places)
    return ApiResponse({"tasks": [accepted(r) for r in requests]}, 202)


def _batch(kind: str, body: bytes) -> tuple[list[SubmittedTask], list[str]]:
    """The tasks of a batch, and the place of each one for errors."""
    if kind == "application/json":
        entries = _parse(body, "")
        if not isinstance(entries, list):
            raise ApiError(422, "the body must be a list of tasks", hint="POST /api/tasks takes a single one")
        places = [f"[{n}]." for n in range(len(entries))]
    elif kind == JSON_LINES:
        lines = [(n, line) for n, line in enumerate(body.split(b"\n"), 1) if line.strip()]
        entries = [_parse(line, f"line {n}: ") for n, line in lines]
        places = [f"line {n}: " for n, _ in lines]
    else:
        raise ApiError(415, f"a body of type {kind!r}", hint=f"send application/json or {JSON_LINES}")
    if not 1 <= len(entries) <= MOST_TASKS:
        raise ApiError(422, f"{len(entries)} tasks in one batch", hint=f"send 1 to {MOST_TASKS}")
    return [_task(entry, place) for entry, place in zip(entries, places, strict=True)], places


def _parse(text: bytes, place: str) -> Any:
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        raise ApiError(422, f"{place}this is no JSON: {error.msg}") from error


def _task(entry: Any, place: str) -> SubmittedTask:
    try:
        return SubmittedTask.model_validate(entry)
    except ValidationError as error:
        problems = field_problems(error.errors())
        for problem in problems:
            problem.path = f"{place}{problem.path}"
        raise ApiError(422, f"{problems[0].path}: {problems[0].problem}", errors=problems) from error


@router.get("/{task_id}", response_model=models.Task, responses=responses(404, 422))
async def status(
    task_id: str,
    context: Ready,
    wait_s: Annotated[float, Query(ge=0, le=30, description="answer when the task has ended, at the latest then")] = 0,
    sessions: Annotated[bool, Query(description="whether to list the sessions")] = True,
) -> ApiResponse:
    """Where a task stands, with its groups and sessions."""
    context.task(task_id)
    await context.views.wait_ended(task_id, min(wait_s, context.settings.longest_wait_s))
    return ApiResponse(task_json(context.task(task_id), with_sessions=sessions))


@router.post("/{task_id}/cancel", status_code=202, response_model=models.CancelRequested, responses=responses(404, 422))
async def cancel(task_id: str, context: Ready, body: Annotated[models.CancelBody | None, Body()] = None) -> ApiResponse:
    """Cancel what still runs of a task. Each session ends once, as cancelled, with what it has."""
    task = context.task(task_id)
    left = sum(not s.is_ended for s in task.sessions()) if task.groups else max(1, task.num_samples)
    if left:
        await ask(context, ControlAction.CANCEL, task_id, "task", (body or models.CancelBody()).reason)
    return ApiResponse({"target": task_id, "sessions": left}, 202)


@router.get("/{task_id}/results", response_model=models.ResultPage, responses=responses(404, 422))
async def results(task_id: str, context: Ready, limit: Limit = 32, after: After = -1) -> ApiResponse:
    """How the task's sessions ended: status, rewards and counts, without their tokens."""
    task = context.task(task_id)
    rows = _scored_after(task, after)
    found = await context.reading.scored([row for _, row in rows[:limit]], up_to_bytes=context.settings.page_bytes)
    page = {"task_id": task_id, "is_ended": task.is_ended, "results": [result_json(s) for s in found]}
    return ApiResponse({**page, "next": _next(rows, limit, found)})


@router.get("/{task_id}/trajectories", response_model=models.TrajectoryPage, responses=responses(404, 422))
async def trajectories(
    task_id: str,
    context: Ready,
    limit: Limit = 16,
    after: After = -1,
    arrays: Annotated[Arrays, Query(description="token arrays as JSON lists, or base64 of their bytes")] = "list",
) -> ApiResponse:
    """The whole results of the task's sessions, as far as they are scored: traces with token ids, loss masks, logprobs."""
    task = context.task(task_id)
    rows = _scored_after(task, after)
    found = await context.reading.scored([row for _, row in rows[:limit]], up_to_bytes=context.settings.page_bytes)
    page = {"task_id": task_id, "is_ended": task.is_ended, "next": _next(rows, limit, found)}
    return await asyncio.to_thread(_page, page, found, arrays)


def _page(page: dict[str, Any], found: list[ScoredTrajectory], arrays: Arrays) -> ApiResponse:
    """Rendering megabytes takes a while, so it happens in a thread."""
    return ApiResponse({**page, "trajectories": [trajectory_json(s, arrays) for s in found]})


def _scored_after(task: TaskRow, after: int) -> list[tuple[int, SessionRow]]:
    """The scored sessions behind a position; positions count all of the task's sessions, so that they stay where they are."""
    return [(n, row) for n, row in enumerate(task.sessions()) if n > after and row.result is not None]


def _next(rows: list[tuple[int, SessionRow]], limit: int, found: list[ScoredTrajectory]) -> int | None:
    """Where the next page goes on; a result that the log no longer has doesn't end the pages."""
    if not rows:
        return None
    seen = {s.session_id for s in found}
    page = rows[:limit]
    last = max((n for n, row in page if row.session_id in seen), default=page[-1][0])
    if len(found) == len(page):
        last = page[-1][0]
    return last if any(n > last for n, _ in rows) else None
