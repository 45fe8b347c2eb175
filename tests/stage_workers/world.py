"""A worker with everything around it played by the test: the bus in memory, the orchestrator, a proxy's admin listener."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from bus.memory import MemoryBus
from schemas import decode, ids
from schemas.records import (
    Control,
    ControlAction,
    Heartbeat,
    Reward,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    Stage,
    StageCommand,
)
from stage_workers.service import WorkerService
from stage_workers.settings import WorkerSettings

DEADLINE_S = 60.0
ADMIN_KEY = "admin-key-of-the-test"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class FakeProxy:
    """The admin listener of a proxy: notes what it is asked, answers as told."""

    address: str = ""
    opened: list[dict[str, Any]] = field(default_factory=list)
    opened_in: list[str] = field(default_factory=list)
    """Per opening, the incarnation that it was asked of: a later one knows nothing of it."""
    sealed: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    """Statuses that the next opens are answered with, before any success."""
    seal_refusals: list[int] = field(default_factory=list)
    before_seal: Callable[[], None] | None = None
    incarnation: str = "p1"
    data_address: str = "http://127.0.0.1:9"
    last_call: dict[str, Any] | None = None
    """How the last model call ended, as the proxy tells it."""
    is_frozen: bool = False
    """It takes connections and answers nothing, as a stopped process."""
    waiting: int = 0
    """How many requests it was frozen for."""

    async def open(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {ADMIN_KEY}":
            return web.json_response({"error": "who are you"}, status=401)
        body = await request.json()
        if self.refusals:
            return web.json_response({"error": "no"}, status=self.refusals.pop(0))
        self.opened.append(body)
        self.opened_in.append(self.incarnation)
        return web.json_response({"lease_id": body["lease_id"], "writer": body["writer"]})

    async def seal(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.before_seal is not None:
            self.before_seal()
        if self.seal_refusals:
            return web.json_response({"error": "no"}, status=self.seal_refusals.pop(0))
        self.sealed.append(body)
        return web.json_response({"lease_id": body["lease_id"], "writer": body["writer"], "last_seq": 0})

    async def lease(self, request: web.Request) -> web.Response:
        lease_id, writer = request.match_info["lease_id"], int(request.match_info["writer"])
        ours = [b for b, which in zip(self.opened, self.opened_in, strict=True) if which == self.incarnation]
        mine = [b for b in ours if (b["lease_id"], b["writer"]) == (lease_id, writer)]
        if not mine:
            return web.json_response({"error": "unknown"}, status=404)
        is_sealed = any((b["lease_id"], b["writer"]) == (lease_id, writer) for b in self.sealed)
        return web.json_response({"state": "sealed" if is_sealed else "open", "last_call": self.last_call})

    async def health(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_healthy": True, "incarnation": self.incarnation})

    @web.middleware
    async def _freeze(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.waiting += self.is_frozen
        while self.is_frozen:
            await asyncio.sleep(0.05)
        response: web.StreamResponse = await handler(request)
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeProxy]:
        app = web.Application(middlewares=[self._freeze])
        app.add_routes(
            [
                web.post("/leases/open", self.open),
                web.post("/leases/seal", self.seal),
                web.get("/health", self.health),
                web.get("/leases/{lease_id}/{writer}", self.lease),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


class World:
    """The worker, and the test's hands on everything around it."""

    def __init__(self, bus: MemoryBus, settings: WorkerSettings, proxy: FakeProxy, worker: WorkerService) -> None:
        self.bus = bus
        self.settings = settings
        self.proxy = proxy
        self.worker = worker
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()

    @property
    def incarnation(self) -> str:
        return self.worker.incarnation

    # -- what the others say -------------------------------------------------------------------------------------

    async def announce_proxy(self, **fields: Any) -> None:
        proxy = self.proxy
        beat = {"node_id": "proxy-1", "incarnation": proxy.incarnation, "data_address": proxy.data_address}
        given = {"admin_address": proxy.address, "at": now_ms()}
        await self.bus.publish(Heartbeat(role="proxy", **(beat | given | fields)))

    async def command(self, stage: Stage, session: str, task: dict[str, Any] | None = None, **fields: Any) -> None:
        attempt = fields.get("attempt", 1)
        given = {
            "worker_id": self.settings.worker_id,
            "incarnation": self.incarnation,
            "lease_id": "" if stage is Stage.INIT else ids.lease_id(session, attempt),
            "expires_at": now_ms() + 60_000,
            "issued_at": now_ms(),
            "spec": SessionSpec(task_id="task-1", group_id="group-1", policy_id="my-policy", harness="shell"),
        }
        await self.bus.publish(StageCommand(stage=stage, session_id=session, task=task, **(given | fields)))

    async def fact(self, kind: SessionEventType, session: str, **fields: Any) -> None:
        await self.bus.publish(SessionEvent(type=kind, session_id=session, at=now_ms(), **fields))

    async def grant(self, session: str, attempt: int = 1, worker_id: str | None = None, **fields: Any) -> None:
        await self.fact(
            SessionEventType.GRANTED,
            session,
            attempt=attempt,
            lease_id=ids.lease_id(session, attempt),
            worker_id=worker_id or self.settings.worker_id,
            incarnation=self.incarnation if worker_id is None else "other",
            **fields,
        )

    async def cancel(self, target: str, kind: str = "session") -> None:
        await self.bus.publish(
            Control(target=target, target_kind=kind, action=ControlAction.CANCEL, reason="enough", at=now_ms())
        )

    # -- what the worker says ------------------------------------------------------------------------------------

    def events(self, session: str | None = None) -> list[SessionEvent]:
        """Its facts, in order (of one session)."""
        found = [decode(item.value) for item in self.bus.records("rollout.sessions")]
        mine = [
            event
            for event in found
            if isinstance(event, SessionEvent)
            and event.worker_id == self.settings.worker_id
            and event.type not in {SessionEventType.GRANTED, SessionEventType.INIT_LOST}
        ]
        return [event for event in mine if session in {None, event.session_id}]

    def kinds(self, session: str) -> list[str]:
        return [str(event.type) for event in self.events(session)]

    def rewards(self) -> list[Reward]:
        return [
            record for item in self.bus.records("reward.assigned") if isinstance(record := decode(item.value), Reward)
        ]

    def beats(self) -> list[Heartbeat]:
        beats = [decode(item.value) for item in self.bus.records("rollout.nodes")]
        return sorted(
            (beat for beat in beats if isinstance(beat, Heartbeat) and beat.incarnation == self.incarnation),
            key=lambda beat: beat.seq,
        )

    async def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """The condition's first true value; looks again after each change of the bus."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                async with self.bus._appended:
                    return await self.bus._appended.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"{what or 'it'} didn't happen; events: {self.kinds_of_all()}") from None

    def kinds_of_all(self) -> list[tuple[str, str, str]]:
        return [(event.session_id, str(event.type), event.error) for event in self.events()]

    async def heard(self, kind: SessionEventType, session: str) -> SessionEvent:
        """The worker's fact of this kind."""

        def find() -> SessionEvent | None:
            return next((event for event in self.events(session) if event.type is kind), None)

        return await self.until(find, f"{kind} of {session}")

    async def let_go(self, session: str) -> None:
        """Waits for a heartbeat that no longer holds the session."""
        seen = len(self.beats())
        await self.until(
            lambda: any(session not in {held.session_id for held in beat.holds} for beat in self.beats()[seen:]),
            f"teardown of {session}",
        )

    # -- whole stretches -----------------------------------------------------------------------------------------

    async def to_ready(self, session: str, task: dict[str, Any], **fields: Any) -> SessionEvent:
        await self.command(Stage.INIT, session, task, **fields)
        return await self.heard(SessionEventType.READY, session)

    async def to_running(self, session: str, task: dict[str, Any]) -> SessionEvent:
        await self.to_ready(session, task)
        await self.grant(session)
        await self.command(Stage.RUNNING, session, task)
        return await self.heard(SessionEventType.STARTED, session)

    async def to_sealed(self, session: str, task: dict[str, Any]) -> SessionEvent:
        await self.to_running(session, task)
        return await self.heard(SessionEventType.SEALED, session)

    async def to_graded(self, session: str, task: dict[str, Any]) -> SessionEvent:
        await self.to_sealed(session, task)
        await self.command(Stage.POSTRUN, session, task)
        return await self.heard(SessionEventType.GRADED, session)


def task(command: str | list[str] = "true", **fields: Any) -> dict[str, Any]:
    """A task file's tree for the harness `shell`."""
    harness = {"name": "shell", "options": {"command": command, **fields.pop("options", {})}}
    return {"task_id": "task-1", "instruction": "Do it", "harness": harness, **fields}


@asynccontextmanager
async def world(bus: MemoryBus, state_dir: Path, *, has_proxy: bool = True, **settings: Any) -> AsyncIterator[World]:
    """A running worker in its world; stopped at the end."""
    given = {"worker_id": "worker-1", "heartbeat_s": 0.5, "kill_grace_s": 0.3, "flush_deadline_s": 5.0}
    full = WorkerSettings(state_dir=state_dir, admin_key=ADMIN_KEY, **(given | settings))
    proxy = FakeProxy()
    async with proxy.serving():
        worker = WorkerService(full, bus)
        around = World(bus, full, proxy, worker)
        if has_proxy:
            await around.announce_proxy()
        task = asyncio.create_task(worker.run(around.stop, on_ready=around.ready.set))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await around.ready.wait()
            yield around
        finally:
            around.stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await task
