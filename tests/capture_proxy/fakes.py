"""Fakes for the proxy's tests: a tokenizer of characters, an engine that speaks SGLang's protocol, a bus that can be held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from bus.deliveries import Position
from bus.memory import MemoryBus
from capture_proxy.engines.modes import PROBE_RID
from capture_proxy.rendering.base import ParsedReply, ReplyParser
from capture_proxy.rendering.calls import read_json_calls
from capture_proxy.rendering.parser import MarkParser

END_ID = 1
"""Ends a turn; every other id is a code point plus 10."""


class CharDetokenizer:
    """One character per id; the end of a turn is nothing."""

    def step(self, token_id: int) -> str:
        return "" if token_id == END_ID else chr(token_id - 10)

    def flush(self) -> str:
        return ""


class CharRenderer:
    """A `Renderer` whose tokens are characters, with the real parser of thinking and tool calls behind it."""

    name = "chars"
    tokenizer_digest = "t" * 64
    template_digest = "p" * 64
    stop_token_ids = (END_ID,)
    end_of_turn_id = END_ID
    vocab_size = 0x110000 + 10

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int]:
        lines = [json.dumps(list(tools)), *map(_line, messages), "assistant: "]
        return self.encode("\n".join(lines))

    def extend(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        *,
        new_from: int,
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int] | None:
        closing = [] if list(output_ids[-1:]) == [END_ID] else [END_ID]
        tail = "\n".join(["", *map(_line, messages[new_from:]), "assistant: "])
        return [*prompt_ids, *output_ids, *closing, *self.encode(tail)]

    def parser(
        self,
        prompt_ids: Sequence[int],
        *,
        is_parsing_tools: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
    ) -> ReplyParser:
        return MarkParser(
            CharDetokenizer(), call_format=read_json_calls if is_parsing_tools else None, tools=tools, stop=stop
        )

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(CharDetokenizer().step(i) for i in ids)

    def token_bytes(self, token_id: int) -> bytes:
        return CharDetokenizer().step(token_id).encode()

    def encode(self, text: str) -> list[int]:
        return [ord(c) + 10 for c in text]


def _line(message: Mapping[str, Any]) -> str:
    return f"{message['role']}: {message.get('content') or ''}{json.dumps(message.get('tool_calls') or '')}"


Script = Callable[[str, dict[str, Any]], str]


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    """What a model samples to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class FakeEngine:
    """An HTTP server with SGLang's `/generate`: streams one character per event, and can be told to wait, fail or drop."""

    def __init__(self) -> None:
        self.script: Script = lambda _prompt, _request: "Hello there."
        self.requests: list[dict[str, Any]] = []
        self.aborts: list[str] = []
        self.status = 200
        self.failures: list[int] = []
        """Statuses of the next requests, before `status` counts; 0 cuts the connection without one."""
        self.error: dict[str, Any] = {"error": {"message": "no"}}
        self.headers: dict[str, str] = {}
        self.accept = asyncio.Event()
        self.accept.set()
        self.go = asyncio.Event()
        self.go.set()
        self.pause_at: int | None = None
        """With `go` cleared: stop before this output token."""
        self.drop_at: int | None = None
        self.error_at: int | None = None
        """Before this output token: an event with an error, and the end."""
        self.echo: list[int] | None = None
        self.with_logprobs = True
        self.logprob: float | None = -0.5
        self.finish: dict[str, Any] | None = None
        self.last_meta: dict[str, Any] = {}
        """Laid over what the last event says of itself; None takes a field out."""
        self.stops: list[tuple[int, dict[str, Any], str]] = []
        """Of the next requests: after how many tokens they end, with which reason, sampled by which weight version."""
        self.request_headers: list[dict[str, str]] = []
        self.reached = asyncio.Event()
        self.context_length = 100_000
        self.tokenizer: Callable[[str], list[int]] | None = CharRenderer().encode
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeEngine]:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/model_info", self._info)
        app.router.add_post("/v1/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.go.set()
            self.accept.set()
            await runner.cleanup()

    async def _info(self, _request: web.Request) -> web.Response:
        return web.json_response({"model_path": "fake", "weight_version": "v1", "is_generation": True})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.tokenizer is None:
            return web.json_response({"error": {"message": "no such endpoint"}}, status=404)
        body = await request.json()
        if "messages" in body:
            return web.json_response({"tokens": CharRenderer().render(body["messages"], [], {})})
        return web.json_response({"tokens": self.tokenizer(body["prompt"])})

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake", "max_model_len": self.context_length}]})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append((await request.json())["rid"])
        return web.json_response({})

    async def _answer_probe(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """One token, with a logprob that the temperature moves; whatever a test wants of calls doesn't concern it."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        logprob = -4.0 * body["sampling_params"]["temperature"] if self.with_logprobs else None
        meta = {
            "id": body["rid"],
            "completion_tokens": 1,
            "prompt_tokens": len(body["input_ids"]),
            "finish_reason": {"type": "length", "length": 1},
            "weight_versions": [{"version": "v1", "start": 0, "end": 1}],
            **({} if logprob is None else {"output_token_logprobs": [[logprob, 50, None]]}),
        }
        event = {"text": "", "output_ids": [50], "prompt_token_ids": body["input_ids"], "meta_info": meta}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["rid"].startswith(PROBE_RID):
            return await self._answer_probe(request, body)
        self.requests.append(body)
        self.request_headers.append(dict(request.headers))
        await self.accept.wait()
        status = self.failures.pop(0) if self.failures else self.status
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if status != 200:
            return web.json_response(self.error, status=status, headers=self.headers)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        renderer = CharRenderer()
        text = self.script(renderer.decode(body["input_ids"]), body)
        ids = [*renderer.encode(text), END_ID]
        limit = body["sampling_params"].get("max_new_tokens", 1 << 30)
        reason = self.finish or {"type": "stop", "matched": END_ID}
        if len(ids) > limit:
            ids, reason = ids[:limit], {"type": "length", "length": limit}
        version = "v1"
        if self.stops:
            count, reason, version = self.stops.pop(0)
            ids = ids[:count]
        meta: dict[str, Any]
        event: dict[str, Any]
        if not ids:  # stopped before its first token
            meta = {"id": body["rid"], "completion_tokens": 0, "finish_reason": reason, "weight_version": version}
            event = {"text": "", "output_ids": [], "meta_info": meta, "prompt_token_ids": body["input_ids"]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        for at, token in enumerate(ids, start=1):
            if at == self.pause_at:
                self.reached.set()
                await self.go.wait()
            if at == self.error_at:
                await response.write(b"data: " + json.dumps(self.error).encode() + b"\n\n")
                await response.write_eof()
                return response
            if at == self.drop_at:
                assert request.transport is not None
                request.transport.abort()
                return response
            meta = {
                "id": body["rid"],
                "completion_tokens": at,
                "prompt_tokens": len(body["input_ids"]),
                "cached_tokens": 0,
                "weight_version": version,
                "finish_reason": None,
            }
            if self.with_logprobs:
                meta["output_token_logprobs"] = [[self.logprob, token, None]]
            if count := body.get("top_logprobs_num"):
                meta["output_top_logprobs"] = [[[-0.5 - n, token + n, None] for n in range(count)]]
            event = {"text": "", "output_ids": [token], "meta_info": meta}
            if at == len(ids):
                meta["finish_reason"] = reason
                meta["weight_versions"] = [{"version": version, "start": 0, "end": at}]
                meta |= self.last_meta
                if body["return_prompt_token_ids"]:
                    event["prompt_token_ids"] = body["input_ids"] if self.echo is None else self.echo
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


class HeldBus(MemoryBus):
    """A bus whose acknowledgements can be withheld: records arrive on the log, but `publish` doesn't return."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.acks = asyncio.Event()
        self.acks.set()

    async def publish_raw(self, *record: Any, **options: Any) -> Position:
        await self.acks.wait()
        return await super().publish_raw(*record, **options)


def finish_all(parser: ReplyParser, ids: Sequence[int]) -> ParsedReply:
    """The parsed whole of an output."""
    parser.feed(ids)
    return parser.finish()[1]
