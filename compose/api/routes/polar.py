"""Polar's endpoints, so that its clients and recipes work here with another address and a key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from compose.api.bodies import JsonRoute
from compose.api.context import Context, Ready
from compose.api.control import ask
from compose.api.polar import models
from compose.api.polar.mapping import task_of
from compose.api.polar.results import task_status, task_status_of
from compose.api.problems import ApiError, ApiResponse, not_found, responses
from compose.api.render import is_alive
from compose.api.rows import TaskRow
from schemas.records import ControlAction, Heartbeat, ScoredTrajectory, Stage

router = APIRouter(tags=["polar"], route_class=JsonRoute)

MOST_TASKS = 1000
"""Tasks that the overview lists: the newest."""


@router.post("/rollout/task/submit", response_model=models.PolarSubmitted, responses=responses(409, 413, 422))
async def submit(request: models.PolarTaskRequest, context: Ready) -> ApiResponse:
    """Submit Polar's flat TaskRequest. Answered once the task stands durably on the log; repeatable."""
    (made,) = await context.submissions.submit([task_of(request)])
    row = context.views.rows.tasks.get(made.task_id)
    return ApiResponse({"task_id": made.task_id, "status": task_status_of(row) if row is not None else "running"})


@router.get("/rollout/task/{task_id}", response_model=models.PolarTaskStatus, responses=responses(404, 422))
async def task(task_id: str, context: Ready) -> ApiResponse:
    """A task with the results so far, whole and inline, as Polar has it; too many bytes for that are refused."""
    row = context.task(task_id)
    wanted = [s for s in row.sessions() if s.result is not None]
    scored = await context.reading.scored(wanted, up_to_bytes=context.settings.inline_bytes)
    if len(scored) < len(wanted):
        raise ApiError(
            422,
            f"the results of task {task_id!r} are more than {context.settings.inline_bytes} bytes, or partly expired",
            hint=f"page through GET /api/tasks/{task_id}/trajectories",
        )
    return await asyncio.to_thread(_rendered, row, scored)


def _rendered(row: TaskRow, scored: list[ScoredTrajectory]) -> ApiResponse:
    return ApiResponse(task_status(row, scored))


@router.get("/rollout/status", response_model=models.PolarStatus, responses=responses())
async def status(context: Ready) -> ApiResponse:
    """The newest tasks, what waits, and the workers."""
    rows = context.views.rows
    newest = list(rows.tasks.values())[-MOST_TASKS:]
    pending = sum(row.stage is Stage.QUEUED and row.result is None for row in rows.sessions.values())
    return ApiResponse(
        {
            "tasks": {row.task_id: task_status_of(row) for row in newest},
            "pipeline": {"pending_sessions": pending},
            "nodes": {"nodes": _nodes(context)},
        }
    )


@router.get("/nodes", response_model=models.PolarNodes, responses=responses())
async def nodes(context: Ready) -> ApiResponse:
    """The workers, as Polar's gateway nodes."""
    return ApiResponse({"nodes": _nodes(context)})


@router.get("/nodes/{node_id}", response_model=models.PolarNode, responses=responses(404, 422))
async def node(node_id: str, context: Ready) -> ApiResponse:
    """One worker."""
    return ApiResponse(_node(_worker(context, node_id)))


@router.delete("/nodes/{node_id}", response_model=models.PolarNode, responses=responses(404, 422))
async def drain(node_id: str, context: Ready) -> ApiResponse:
    """Ask a worker to take no new sessions and to end once it has none."""
    beat = _worker(context, node_id)
    await ask(context, ControlAction.DRAIN, node_id, "node", "drained over the API")
    return ApiResponse({**_node(beat), "draining": True})


@router.get("/health", response_model=models.PolarHealth, responses=responses(), openapi_extra={"security": []})
async def health(request: Request) -> ApiResponse:
    """Whether the API answers; needs no key. `GET /api/health` says more."""
    context: Context = request.app.state.context
    is_ok = context.views.is_caught_up and not context.views.problems
    alive = sum(is_alive(beat) for beat in context.views.workers())
    return ApiResponse({"status": "ok" if is_ok else "starting", "nodes": alive})


def _worker(context: Context, node_id: str) -> Heartbeat:
    beat = context.views.rows.nodes.get(node_id)
    if beat is None or beat.role != "worker":
        raise not_found("worker", node_id, hint="GET /nodes")
    return beat


def _nodes(context: Context) -> list[dict[str, Any]]:
    return [_node(beat) for beat in sorted(context.views.workers(), key=lambda b: b.node_id)]


def _node(beat: Heartbeat) -> dict[str, Any]:
    """What a heartbeat says in Polar's terms: a pool is as large as what is free and what is held."""
    held = [h.stage for h in beat.holds]
    initialising, ready = held.count(Stage.INIT), held.count(Stage.READY)
    running, grading = held.count(Stage.RUNNING), held.count(Stage.POSTRUN) + held.count(Stage.SEALED)
    return {
        "node_id": beat.node_id,
        "gateway_url": beat.data_address,
        "max_init_workers": beat.free_init + initialising,
        "max_run_workers": beat.free_run + running,
        "max_postrun_workers": beat.free_postrun + grading,
        "metrics": {
            "init_queue_depth": 0,
            "init_inflight": initialising,
            "ready_depth": ready,
            "run_inflight": running,
            "postrun_queue_depth": 0,
            "postrun_inflight": grading,
        },
        "healthy": is_alive(beat),
        "draining": beat.is_draining,
        "heartbeat_interval_seconds": max(1, round(beat.interval_s)),
        "last_heartbeat": datetime.fromtimestamp(max(0, beat.at) / 1000, UTC).isoformat(),
    }
