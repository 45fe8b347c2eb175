"""A real tiny model and real Qwen3 tokenizer for the engine's tests; engines served in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from compose.cpu_engine.settings import EngineSettings
from compose.cpu_engine.tiny_model import ensure_tiny_model


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The demo model's directory."""
    return ensure_tiny_model()


@pytest.fixture(scope="session")
def other_checkpoint() -> Path:
    """The same architecture and tokenizer with other weights."""
    return ensure_tiny_model(seed=1)


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Any:
    """Qwen3's tokenizer, loaded once."""
    from compose.cpu_engine.text import Tokenizer

    return Tokenizer(checkpoint)


@dataclass
class Client:
    """What tests say to an engine over HTTP."""

    url: str
    session: aiohttp.ClientSession
    engine: Any

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and decoded body (text where it isn't JSON)."""
        async with self.session.post(self.url + path, data=orjson.dumps(body if body is not None else {})) as reply:
            data = await reply.read()
            return reply.status, orjson.loads(data) if reply.content_type == "application/json" else data.decode()

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded body."""
        async with self.session.get(self.url + path) as reply:
            data = await reply.read()
            return reply.status, orjson.loads(data) if reply.content_type == "application/json" else data.decode()

    async def generate(self, **body: Any) -> Any:
        """The body of a `/generate` that must succeed."""
        status, reply = await self.post("/generate", body)
        assert status == 200, reply
        return reply

    async def events(self, **body: Any) -> AsyncIterator[Any]:
        """Decoded stream events; ends at `[DONE]`, fails when the stream ends without it."""
        async with self.session.post(self.url + "/generate", data=orjson.dumps({**body, "stream": True})) as reply:
            assert reply.status == 200, await reply.text()
            assert reply.content_type == "text/event-stream"
            async for line in reply.content:
                text = line.rstrip(b"\n")
                if not text:
                    continue
                assert text.startswith(b"data: ")
                if text == b"data: [DONE]":
                    return
                yield orjson.loads(text[6:])
        raise AssertionError("the stream ended without [DONE]")

    async def until(self, condition: Callable[[], bool], *, deadline_s: float = 20.0) -> None:
        """Wait until `condition()` holds; the engine has no event for what tests look at from outside."""
        async with asyncio.timeout(deadline_s):
            while not condition():
                await asyncio.sleep(0.005)

    @property
    def running(self) -> list[Any]:
        """The sequences that the scheduler knows."""
        return list(self.engine.scheduler._active)


Serve = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def serve(checkpoint: Path, tokenizer: Any) -> Serve:
    """What starts an engine on a free port, with a plain function as policy and settings by name: an async context."""
    from compose.cpu_engine.server import serving
    from compose.cpu_engine.service import Engine

    @contextlib.asynccontextmanager
    async def start(policy: Callable[..., Any] | None = None, **settings: Any) -> AsyncIterator[Client]:
        options = EngineSettings(model=settings.pop("model", checkpoint), **settings)
        engine = Engine.load(options, tokenizer=tokenizer, policy=policy)
        timeout = aiohttp.ClientTimeout(total=60)
        async with serving(engine) as url, aiohttp.ClientSession(timeout=timeout) as session:
            yield Client(url, session, engine)

    return start
