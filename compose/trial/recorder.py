"""A model endpoint that notes what a harness sends: the proxy's own dialects, the trial's script instead of an engine, no stack."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web

from capture_proxy.dialects import DIALECTS, detect
from capture_proxy.reply import (
    ChatRequest,
    Finished,
    ProxyError,
    ReasoningDelta,
    Reply,
    ReplyEvent,
    Started,
    TextDelta,
    ToolCall,
    tool_call_id,
)
from compose.trial.script import Step, dumps, next_step

# The longest request that a harness sends in a trial is far below.
_MAX_BYTES = 64 << 20
# Every reply thinks first: what a harness does with that belongs to its wire.
THOUGHT = "One thing after another."
_JSON = {"content-type": "application/json"}

Script: TypeAlias = Callable[[Sequence[Mapping[str, Any]], int, str], Step]
"""(the tools offered, how many replies came before, the conversation's text) → the next reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and what it was answered. `path` has its query; header names are lower-case; `answer` is the body as sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int
    answer: bytes
    request: ChatRequest | None = None


@dataclass(slots=True)
class Recorder:
    """The exchanges so far, in the order of their arrival."""

    exchanges: list[Exchange] = field(default_factory=list)
    status: int = 200
    """Anything but 200: every model call is refused with it."""
    script: Script = next_step
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        body = await request.read()
        status, headers, answer, asked = self._answer(request, body)
        self.exchanges.append(
            Exchange(
                method=request.method,
                path=request.raw_path,
                headers={name.lower(): value for name, value in request.headers.items()},
                body=body,
                status=status,
                answer=answer,
                request=asked,
            )
        )
        return web.Response(status=status, headers=dict(headers), body=answer)

    def _answer(self, request: web.Request, body: bytes) -> tuple[int, Mapping[str, str], bytes, ChatRequest | None]:
        headers = dict(request.headers)
        route = detect(request.method, request.raw_path, headers)
        if route is None:
            return 404, _JSON, b'{"error": "no such endpoint"}', None
        dialect = DIALECTS[route.dialect]
        try:
            if self.status != 200:
                raise ProxyError("bad_request", "no luck today", status=self.status)
            if route.operation == "count_tokens":
                return 200, _JSON, dialect.encode_count(len(body) // 4), None
            if route.operation != "generate":
                return 200, _JSON, dialect.encode_models([]), None
            asked = dialect.parse_request(route.path, headers, body)
        except ProxyError as error:
            return (*dialect.encode_error(error), None)
        reply = self._reply(asked)
        if not asked.stream:
            return 200, _JSON, dialect.encode_whole(reply), asked
        encoder = dialect.stream_encoder(asked)
        begin = Started(reply.completion_id, reply.model, reply.created_at, reply.prompt_tokens)
        events: tuple[ReplyEvent, ...] = (
            begin,
            ReasoningDelta(reply.reasoning),
            TextDelta(reply.text),
            Finished(reply),
        )
        return 200, dialect.stream_headers, b"".join([encoder.encode(event) for event in events]), asked

    def _reply(self, asked: ChatRequest) -> Reply:
        turn = sum(message.get("role") == "assistant" for message in asked.messages)
        step = self.script(asked.tools, turn, "\n".join(str(message.get("content")) for message in asked.messages))
        return _as_reply(asked, step, next(self._numbers))


def _as_reply(asked: ChatRequest, step: Step, number: int) -> Reply:
    completion_id = f"00000000-0000-4000-8000-{number:012x}"
    return Reply(
        completion_id=completion_id,
        model=asked.model,
        text=step.text,
        reasoning=THOUGHT,
        tool_calls=tuple(
            ToolCall(tool_call_id(completion_id, index), call.name, dumps(call.arguments))
            for index, call in enumerate(step.calls)
        ),
        finish_reason="tool_calls" if step.calls else "stop",
        prompt_tokens=100,
        completion_tokens=20,
        created_at=int(time.time() * 1000),
        echo=asked.echo,
    )


@asynccontextmanager
async def recording(status: int = 200, *, script: Script = next_step) -> AsyncIterator[tuple[str, Recorder]]:
    """The endpoint's address (`http://host:port`) and what it has noted; it is closed at the end."""
    recorder = Recorder(status=status, script=script)
    application = web.Application(client_max_size=_MAX_BYTES)
    application.router.add_route("*", "/{path:.*}", recorder.handle)
    runner = web.AppRunner(application, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        async with asyncio.timeout(30):
            await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", recorder
    finally:
        await runner.cleanup()
