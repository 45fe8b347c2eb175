"""The API on the bus in memory, with facts told by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from bus.memory import MemoryBus
from compose.api.app import create_app
from compose.api.settings import ApiSettings

KEY = "the-key"
AUTH = {"Authorization": f"Bearer {KEY}"}


def settings(**fields: Any) -> ApiSettings:
    """Settings of a test's API."""
    return ApiSettings(key=SecretStr(KEY), **fields)


@asynccontextmanager
async def serving(bus: MemoryBus, **fields: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API on this bus, with the key."""
    app = create_app(bus, settings(**fields))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://api", headers=AUTH) as client:
            yield client


@pytest.fixture
async def client(memory_bus: MemoryBus) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API on the bus in memory."""
    async with serving(memory_bus) as client:
        yield client


@pytest.fixture
def task() -> Callable[..., dict[str, Any]]:
    """A small valid task."""

    def make(**fields: Any) -> dict[str, Any]:
        return {"instruction": "hi", "harness": {"name": "shell", "options": {"command": "true"}}, **fields}

    return make


async def settled(client: httpx.AsyncClient) -> None:
    """Wait until the API has read all that is on the log."""
    async with asyncio.timeout(20):
        while (await client.get("/api/health")).json()["lag"] != 0:
            await asyncio.sleep(0.005)
