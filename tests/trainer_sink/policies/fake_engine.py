"""An engine's control endpoints without an engine: it keeps what it was told, in order, and can be made to misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(slots=True)
class FakeEngine:
    """What it serves, what it was asked, and how it misbehaves. `url` is set while it runs."""

    url: str = ""
    version: str = "default"
    path: str = ""
    is_paused: bool = False
    is_busy: bool = False
    """Requests run, so that the cache can't be flushed while they are paused in place."""
    asked: list[str] = field(default_factory=list)
    refuses: dict[str, int] = field(default_factory=dict)
    """Route → status of its answers."""
    hangs: dict[str, asyncio.Event] = field(default_factory=dict)
    """Route → it answers after this is set."""
    reached: dict[str, asyncio.Event] = field(default_factory=dict)
    """Route → set when a request for it has come."""
    key: str = ""
    is_deaf: bool = False
    """It says that it has loaded, and has not."""

    async def handle(self, request: web.Request) -> web.Response:
        """One request."""
        route = request.path
        self.asked.append(route)
        if route in self.reached:
            self.reached[route].set()
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if route in self.hangs:
            await self.hangs[route].wait()
        if route in self.refuses:
            return web.json_response({"success": False, "message": "no"}, status=self.refuses[route])
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        return self._answer(route, body)

    def _answer(self, route: str, body: dict[str, Any]) -> web.Response:
        match route:
            case "/pause_generation":
                self.is_paused = True
                if body["mode"] == "retract":
                    self.is_busy = False
            case "/continue_generation":
                self.is_paused = False
            case "/update_weights_from_disk":
                assert body["flush_cache"] is False
                if not self.is_deaf:
                    self.version, self.path = body["weight_version"], body["model_path"]
                return web.json_response({"success": True, "message": "Succeeded to update model weights."})
            case "/flush_cache":
                return web.Response(text="said", status=400 if self.is_busy else 200)
            case "/model_info":
                return web.json_response({"weight_version": self.version, "model_path": self.path})
            case _:
                return web.Response(status=404)
        return web.json_response({"status": "ok"})


@asynccontextmanager
async def serving(engine: FakeEngine) -> AsyncIterator[FakeEngine]:
    """The engine on a port of its own."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", engine.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        for event in engine.hangs.values():
            event.set()
        await runner.cleanup()
