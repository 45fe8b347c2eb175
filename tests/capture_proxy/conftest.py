"""A whole proxy in one process, in front of a fake engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from capture_proxy.service import CaptureProxy
from capture_proxy.settings import EngineSettings, ProxySettings
from schemas import ids
from schemas.records import CompletionDelivery, CompletionRecord, Record, Rejection, SessionOpened, SessionSealed
from tests.capture_proxy.fakes import CharRenderer, FakeEngine, HeldBus

ADMIN_KEY = "admin-key"
DEADLINE_S = 10.0


@dataclass
class Stack:
    """The proxy, what stands around it, and the shortest way to each."""

    root: Path
    bus: HeldBus
    engine: FakeEngine
    http: aiohttp.ClientSession
    options: dict[str, Any] = field(default_factory=dict)
    fsync: Callable[[int], None] = os.fdatasync
    proxy: CaptureProxy = field(init=False)
    secret: str = "s3cret-of-the-lease"
    session_id: str = "session-1"

    @property
    def lease_id(self) -> str:
        return ids.lease_id(self.session_id, 1)

    def _fsync(self, fd: int) -> None:
        self.fsync(fd)

    async def start(self) -> CaptureProxy:
        defaults: dict[str, Any] = {
            "proxy_id": "proxy-a",
            "spool_dir": self.root / "spool",
            "model_dir": self.root,
            "engines": (EngineSettings(url=self.engine.url),),
            "admin_key": ADMIN_KEY,
            "seal_drain_s": 2.0,
            "seal_delivery_s": 2.0,
            "stop_relay_s": 2.0,
            "adopt_every_s": 0.1,
        }
        settings = ProxySettings(**{**defaults, **self.options})
        self.proxy = CaptureProxy(settings, self.bus, CharRenderer(), fsync=self._fsync)
        await self.proxy.start()
        return self.proxy

    async def admin(self, method: str, path: str, body: Any = None, key: str = ADMIN_KEY) -> tuple[int, dict[str, Any]]:
        async with self.http.request(
            method, self.proxy.admin_address + path, json=body, headers={"authorization": f"Bearer {key}"}
        ) as response:
            return response.status, await response.json()

    def open_body(self, **changes: Any) -> dict[str, Any]:
        spec = {"task_id": "task-1", "group_id": "group-1", "policy_id": "policy-1", "harness": "shell"}
        return {
            "session_id": self.session_id,
            "attempt": 1,
            "lease_id": self.lease_id,
            "secret_hash": ids.secret_hash(self.secret),
            "writer": 1,
            "takes_over": 0,
            "spec": spec,
            **changes,
        }

    async def open(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        return await self.admin("POST", "/leases/open", self.open_body(**changes))

    async def seal(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        return await self.admin(
            "POST", "/leases/seal", {"lease_id": self.lease_id, "writer": 1, "reason": "done", **changes}
        )

    def url(self, path: str) -> str:
        return f"{self.proxy.data_address}/s/{self.secret}{path}"

    def records(self, kind: type[Record], topic: str = "capture.completions") -> list[Any]:
        return [r for d in self.bus.records(topic) if isinstance(r := d.decode(), kind)]

    @property
    def calls(self) -> list[CompletionRecord]:
        return sorted(self.records(CompletionRecord), key=lambda r: r.call_seq)

    @property
    def deliveries(self) -> list[CompletionDelivery]:
        return self.records(CompletionDelivery)

    @property
    def openings(self) -> list[SessionOpened]:
        return self.records(SessionOpened)

    @property
    def seals(self) -> list[SessionSealed]:
        return self.records(SessionSealed)

    @property
    def rejections(self) -> list[Rejection]:
        return self.records(Rejection, "capture.rejections")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until what the bus holds satisfies a condition."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """A fake engine that serves."""
    async with FakeEngine().serving() as serving:
        yield serving


@pytest.fixture
async def make_stack(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Callable[..., Awaitable[Stack]]]:
    """Starts a proxy with the given settings; stops it at the end."""
    made: list[Stack] = []
    async with HeldBus(partitions=3) as bus, aiohttp.ClientSession() as http:

        async def make(**options: Any) -> Stack:
            stack = Stack(tmp_path, bus, engine, http, options)
            made.append(stack)
            await stack.start()
            return stack

        yield make
        bus.acks.set()
        engine.go.set()
        engine.accept.set()
        for stack in made:
            stack.fsync = os.fdatasync
            await stack.proxy.stop()


@pytest.fixture
async def stack(make_stack: Callable[..., Awaitable[Stack]]) -> Stack:
    """A proxy with an open lease."""
    made = await make_stack()
    status, _ = await made.open()
    assert status == 200
    return made
