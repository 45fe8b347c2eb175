"""The fleet and the API itself: nodes, health."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from bus import BusError
from compose.api import models
from compose.api.context import Context, Ready
from compose.api.problems import ApiResponse, responses
from compose.api.render import node_json

router = APIRouter(prefix="/api", tags=["fleet"])

LAG_WITHIN_S = 2.0
"""How long Kafka may take to say where the topics end; longer is an outage."""


@router.get("/nodes", response_model=models.Nodes, responses=responses())
async def nodes(context: Ready) -> ApiResponse:
    """Workers and proxies, by their last heartbeats."""
    beats = sorted(context.views.rows.nodes.values(), key=lambda b: (b.role, b.node_id))
    return ApiResponse({"nodes": [node_json(beat) for beat in beats]})


@router.get(
    "/health",
    response_model=models.Health,
    responses={**responses(), 503: {"model": models.Health, "description": "it can't answer now: `status` says why"}},
    openapi_extra={"security": []},
)
async def health(request: Request) -> ApiResponse:
    """Whether this API can answer; needs no key."""
    context: Context = request.app.state.context
    found = await health_json(context, request.app.state.callbacks.state)
    return ApiResponse(found, 200 if found["status"] == "ok" else 503)


async def health_json(context: Context, callbacks: str) -> dict[str, Any]:
    """As `models.Health`."""
    views = context.views
    problems = list(views.problems)
    try:
        async with asyncio.timeout(LAG_WITHIN_S):
            lag = await views.lag()
    except (BusError, TimeoutError) as error:
        problems.append(f"Kafka doesn't answer: {error!r}")
        lag = -1
    status = "degraded" if problems else "ok" if views.is_caught_up else "starting"
    return {
        "status": status,
        "problems": problems,
        "lag": lag,
        "tasks": len(views.rows.tasks),
        "sessions": len(views.rows.sessions),
        "evicted": views.rows.evicted,
        "unreadable": views.unreadable,
        "callbacks": callbacks,
    }
