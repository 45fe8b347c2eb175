"""The upstream of every generating flow: a small HTTP server on loopback that only this process can use.

It is a coroutine per call, so it can do what a synchronous stream callable can't: wait for the engine's status, show life in
silence, hold the last event until the record is safe, and notice that the client left.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from typing import Final

import structlog
from aiohttp import web

from capture_proxy.call import Call
from capture_proxy.engine_pool import EnginePool
from capture_proxy.generation import Generation
from capture_proxy.leases import Lease
from capture_proxy.recorder import Recorder
from capture_proxy.repeats import Repetition, Undelivered
from capture_proxy.reply import Failed, Finished, KeepAlive, ProxyError, ReplyEvent, Started, to_line

log = structlog.get_logger(__name__)

TOKEN_HEADER: Final = "x-polynya-tap"  # noqa: S105 - the header's name
CALL_HEADER: Final = "x-polynya-call"
PATH: Final = "/call"

_SHORTEST_WAIT_S: Final = 0.25
"""However long a request took to get here: an error that comes at once is still a status code."""


class Tap:
    """Serves started calls, each once, by its completion id."""

    def __init__(
        self,
        recorder: Recorder,
        engines: EnginePool,
        *,
        status_wait_s: float = 5.0,
        keepalive_s: float = 5.0,
        call_timeout_s: float = 1800.0,
        stalled_s: float = 300.0,
        max_resumes: int = 8,
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self.host, self.port = "127.0.0.1", 0
        self._recorder = recorder
        self._engines = engines
        self._status_wait_s = status_wait_s
        self._keepalive_s = keepalive_s
        self._call_timeout_s = call_timeout_s
        self._stalled_s = stalled_s
        self._max_resumes = max_resumes
        self._waiting: dict[str, Generation] = {}
        self._running: dict[str, Generation] = {}
        self.undelivered = Undelivered()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    @property
    def in_flight(self) -> int:
        """Calls that were started and aren't over."""
        return len(self._waiting) + len(self._running)

    async def start(self) -> None:
        """Listens on a free loopback port."""
        app = web.Application()
        app.router.add_post(PATH, self._handle)
        # Without handler_cancellation nobody would tell us that the client has left.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, keepalive_timeout=600.0, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, 0, backlog=4096)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Aborts what still runs, waits for its records, and stops listening."""
        for generation in (*self._waiting.values(), *self._running.values()):
            generation.give_up("proxy_stopped")
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5.0)
        if self._runner is not None:
            await self._runner.cleanup()

    # --- called by the pipeline

    def expect(self, call: Call) -> None:
        """A flow for this call is on its way here."""
        self._waiting[call.completion_id] = Generation(
            call, self._recorder, timeout_s=self._call_timeout_s, max_resumes=self._max_resumes
        )

    def repeat(self, call: Call) -> None:
        """A flow that gets the answer of a call that is over is on its way here."""
        self._waiting[call.completion_id] = Repetition(call, self._recorder)

    def abandon(self, call: Call, reason: str) -> None:
        """The client of a call has left; whether its flow arrived here or not, the call ends."""
        generation = self._waiting.pop(call.completion_id, None) or self._running.get(call.completion_id)
        if generation is not None:
            generation.give_up(reason)

    def abort_lease(self, lease: Lease, reason: str) -> None:
        """Ends all calls of a lease."""
        for calls in (self._waiting, self._running):
            for generation in [g for g in calls.values() if g.call.lease is lease]:
                generation.give_up(reason)

    # --- HTTP

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, ""), self.token):
            return web.Response(status=403, text="the tap serves its own proxy only\n")
        completion_id = request.headers.get(CALL_HEADER, "")
        generation = self._waiting.pop(completion_id, None)
        if generation is None:
            return _terminal(Failed(ProxyError("internal", "the call is over, or never began")))
        self._begin(generation)
        try:
            if generation.call.request.stream:
                return await self._stream(request, generation)
            return _terminal(await _terminal_event(generation))
        except asyncio.CancelledError:
            generation.give_up("client_left")
            raise
        except ConnectionError:  # nobody is there to read this; the server would only log what is raised here
            generation.give_up("client_left")
            return web.Response()

    def _begin(self, generation: Generation) -> None:
        call = generation.call
        if generation.error is not None:  # given up while the flow was on its way
            return
        self._running[call.completion_id] = generation
        task = generation.start(self._engines)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, call.completion_id))

    def _ended(self, task: asyncio.Task[None], completion_id: str) -> None:
        self._tasks.discard(task)
        self._running.pop(completion_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("call.task_failed", completion_id=completion_id, error=repr(error))

    async def _stream(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        call = generation.call
        # Counted from the request's arrival: what came before took of the same time.
        wait_s = max(_SHORTEST_WAIT_S, self._status_wait_s - (time.monotonic() - call.arrived_s))
        try:
            async with asyncio.timeout(wait_s):
                await generation.settled.wait()
        except TimeoutError:
            pass  # the engine is slow: from here on errors travel inside the stream
        if generation.error is not None:
            return _terminal(await _terminal_event(generation))
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson", "cache-control": "no-store"})
        call.is_stream_begun = True
        await response.prepare(request)
        started = Started(call.completion_id, call.request.model, call.stub.started_at, len(call.prompt.ids))
        await response.write(to_line(started))
        ticks = _Ticks(self._keepalive_s / 2)
        while True:
            events = await _next_events(generation, ticks)
            try:
                async with asyncio.timeout(self._stalled_s):
                    await response.write(b"".join(map(to_line, events)))
            except TimeoutError:
                generation.give_up("client_stalled")  # it takes nothing any more: the engine need not go on for it
                if request.transport is not None:
                    request.transport.abort()
                return response
            if isinstance(events[-1], Finished | Failed):
                return response


class _Ticks:
    """The clock of keep-alives. It runs by itself, whatever events come: one that a dialect doesn't show is no sign of life.

    The transcoder leaves out those that aren't needed.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s = time.monotonic() + every_s

    @property
    def left_s(self) -> float:
        """Until the next one; 0 when it is due."""
        return max(0.0, self._next_s - time.monotonic())

    def take(self) -> list[ReplyEvent]:
        """The keep-alive that is due, if one is."""
        if self.left_s > 0.0:
            return []
        self._next_s = time.monotonic() + self._every_s
        return [KeepAlive()]


async def _next_events(generation: Generation, ticks: _Ticks) -> list[ReplyEvent]:
    queue = generation.events
    if queue.empty():
        try:
            async with asyncio.timeout(ticks.left_s):
                events = [await queue.get()]
        except TimeoutError:
            return ticks.take() or [KeepAlive()]
    else:
        events = [queue.get_nowait()]
    # One turn of the loop: on a busy proxy more tokens come in meanwhile, and leave in one write instead of many.
    await asyncio.sleep(0)
    while not queue.empty():
        events.append(queue.get_nowait())
    return [*ticks.take(), *events]


async def _terminal_event(generation: Generation) -> Finished | Failed:
    while True:
        event = await generation.events.get()
        if isinstance(event, Finished | Failed):
            return event


def _terminal(event: Finished | Failed) -> web.Response:
    status = event.error.status if isinstance(event, Failed) else 200
    return web.Response(status=status, body=to_line(event), content_type="application/x-ndjson")
