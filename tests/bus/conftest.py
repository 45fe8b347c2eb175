"""What the bus's tests share: a bus of either kind, handlers that remember, and records to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from bus import Delivery, Lane
from schemas.records import SessionEvent

DEADLINE_S = 20.0
"""For anything to happen; a healthy bus takes milliseconds."""


class Collector:
    """A handler that remembers what it got; `before` may wait or raise first."""

    def __init__(self, before: Callable[[Delivery], Any] | None = None) -> None:
        self.got: list[Delivery] = []
        self._before = before
        self._changed = asyncio.Condition()

    async def __call__(self, delivery: Delivery) -> None:
        if self._before is not None:
            await self._before(delivery)
        self.got.append(delivery)
        async with self._changed:
            self._changed.notify_all()

    async def wait_for(self, count: int) -> list[Delivery]:
        """Wait until `count` records were handled."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.got) >= count)
        return self.got

    @property
    def kinds(self) -> list[str]:
        return [d.decode().error for d in self.got]


@pytest.fixture
def collector() -> type[Collector]:
    """The class of remembering handlers."""
    return Collector


@pytest.fixture
def running() -> Callable[[Lane], AbstractAsyncContextManager[Lane]]:
    """Run a lane inside a `with` block: it has its partitions at the start and has left at the end."""

    @asynccontextmanager
    async def run(lane: Lane) -> AsyncIterator[Lane]:
        task = asyncio.create_task(lane.run())
        try:
            async with asyncio.timeout(DEADLINE_S):
                await lane.wait_ready()
            yield lane
        finally:
            lane.stop()
            async with asyncio.timeout(DEADLINE_S):
                await task

    return run


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Any]:
    """Wait until a condition holds that has no event to wait for; fails after the deadline."""

    async def wait(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await asyncio.sleep(0.02)

    return wait


@pytest.fixture
def event() -> Callable[..., SessionEvent]:
    """Make a small record: one session's fact, told from others by `error`, a field that takes any text."""

    def make(session_id: str = "s-1", kind: str = "ready") -> SessionEvent:
        return SessionEvent(session_id=session_id, type="ready", error=kind)

    return make


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """A server that speaks S3, over HTTP on the loopback: its URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """That server as this process finds it, by the variables that every S3 client reads."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()  # it remembers the addresses of an earlier test
    return s3_server
