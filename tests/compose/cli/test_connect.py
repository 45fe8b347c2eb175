"""How commands ask a proxy's admin listener."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from compose.cli.connect import call_admin
from compose.errors import CommandError, ExitCode
from compose.settings import load


async def test_a_question_is_a_get_and_an_order_a_post() -> None:
    """Both with the key; a refusal has the proxy's own words, silence is a dependency that is down."""

    async def answer(request: web.Request) -> web.Response:
        if request.headers["authorization"] != "Bearer key":
            return web.Response(status=401, text="send the admin key")
        return web.json_response({"method": request.method})

    app = web.Application()
    app.router.add_route("*", "/health", answer)
    settings = load(admin_key="key")
    async with TestServer(app) as server:
        address = str(server.make_url("")).rstrip("/")
        assert await call_admin(settings, address, "/health") == {"method": "GET"}
        assert await call_admin(settings, address, "/health", {}) == {"method": "POST"}
        with pytest.raises(CommandError, match="401 send the admin key"):
            await call_admin(load(admin_key="other"), address, "/health")
    with pytest.raises(CommandError, match="doesn't answer") as silent:
        await call_admin(settings, address, "/health")
    assert silent.value.code is ExitCode.DEPENDENCY_DOWN
