"""The ASGI application: routes, errors, the guard, and the life of the views and the callbacks behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse

from bus import Bus
from compose.api import problems
from compose.api.callbacks.service import CallbackService
from compose.api.context import Context
from compose.api.docs_page import page
from compose.api.guard import Guard
from compose.api.reading import LogReading
from compose.api.routes import fleet, polar, sessions, tasks
from compose.api.settings import ApiSettings
from compose.api.submit import Submissions
from compose.api.views import Views

DESCRIPTION = """Tasks in, states and trajectories out. Every request carries `Authorization: Bearer KEY`.

Every error has the shape `Problem`. What is answered is a projection of the log: several of these APIs can run side by side.
"""


def create_app(bus: Bus, settings: ApiSettings) -> FastAPI:
    """The application on a started bus. Its lifespan follows the log and makes the callbacks."""
    views = Views(bus, max_sessions=settings.max_sessions)
    reading = LogReading(bus)
    context = Context(settings, bus, views, reading, Submissions(bus, views, settings))
    callbacks = CallbackService(bus, views, reading, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        views.start()
        callbacks.start()
        try:
            yield
        finally:
            await callbacks.stop()
            await views.stop()

    app = FastAPI(
        title="Polynya",
        summary="Reinforcement learning on any agent harness, as an event stream",
        description=DESCRIPTION,
        version=metadata.version("polynya"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        default_response_class=problems.ApiResponse,
    )
    app.state.context = context
    app.state.callbacks = callbacks
    problems.install(app)
    app.add_middleware(Guard, settings=settings)
    for router in (tasks.router, sessions.router, fleet.router, polar.router):
        app.include_router(router)

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(
            page(app.openapi()), headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        )

    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The document, with the key's scheme and the one shape of errors instead of the framework's own."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=app.description,
            routes=app.routes,
        )
        parts = document.setdefault("components", {})
        shapes = parts.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            shapes.pop(name, None)
        for model in (problems.Problem,):
            shape = model.model_json_schema(ref_template="#/components/schemas/{model}")
            shapes.update(shape.pop("$defs", {}))
            shapes[model.__name__] = shape
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema
