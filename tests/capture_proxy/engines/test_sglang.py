"""The SGLang client against a small server that speaks the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from capture_proxy.engines import EngineChunk, GenerateRequest, SglangEngine
from capture_proxy.reply import ProxyError

DEADLINE_S = 10.0
REQUEST = GenerateRequest(rid="r-1", session_id="session-1", input_ids=[1, 2, 3], sampling={"max_tokens": 4})


class FakeSglang:
    """A server whose answer a test scripts; it remembers what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.aborted: asyncio.Queue[str] = asyncio.Queue()
        self.left = asyncio.Event()
        self.peers: set[Any] = set()
        self.answer: Callable[[web.Request, web.StreamResponse], Awaitable[None]] = self.tokens
        self.refusal: web.Response | None = None

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Streams the scripted answer."""
        self.asked.append(orjson.loads(await request.read()))
        self.headers.append(request.headers)
        self.peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        if self.refusal is not None:
            return self.refusal
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await self.answer(request, response)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.set()
            raise
        return response

    async def abort(self, request: web.Request) -> web.Response:
        """Notes the id."""
        self.aborted.put_nowait(orjson.loads(await request.read())["rid"])
        return web.Response()

    @staticmethod
    async def send(response: web.StreamResponse, ids: list[int], total: int, finish: Any = None, **meta: Any) -> None:
        """One event."""
        triples = [[-0.5, i, None] for i in ids]
        body = {"output_ids": ids, "prompt_token_ids": [1, 2, 3]}
        body["meta_info"] = {
            "completion_tokens": total,
            "output_token_logprobs": triples,
            "finish_reason": finish,
            "prompt_tokens": 3,
            **meta,
        }  # type: ignore[assignment]
        await response.write(b"data: " + orjson.dumps(body) + b"\n\n")

    async def tokens(self, request: web.Request, response: web.StreamResponse) -> None:
        """Three tokens, cumulative, with two weight versions."""
        await self.send(response, [7], 1)
        await self.send(response, [7, 8], 2)
        spans = [{"version": "a", "start": 0, "end": 2}, {"version": "b", "start": 2, "end": 3}]
        await self.send(response, [7, 8, 9], 3, {"type": "stop", "matched": 9}, weight_versions=spans, cached_tokens=2)
        await response.write(b"data: [DONE]\n\n")

    async def endless(self, request: web.Request, response: web.StreamResponse) -> None:
        """One token, then silence until the client leaves."""
        await self.send(response, [7], 1)
        await asyncio.Event().wait()


@pytest.fixture
async def fake() -> AsyncIterator[FakeSglang]:
    """A running server."""
    server = FakeSglang()
    app = web.Application()
    app.router.add_post("/generate", server.generate)
    app.router.add_post("/abort_request", server.abort)
    app.router.add_get("/model_info", _json({"model_path": "/m", "is_generation": True, "weight_version": "step-1"}))
    app.router.add_get("/v1/models", _json({"data": [{"id": "served", "max_model_len": 4096}]}))
    app.router.add_post("/v1/tokenize", _json({"tokens": [4, 5], "count": 2}))
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


def _json(value: Any) -> Handler:
    """A handler that always gives this JSON."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(value)

    return answer


@pytest.fixture
async def engine(fake: FakeSglang) -> AsyncIterator[SglangEngine]:
    """A client of it."""
    client = SglangEngine(fake.url + "/", api_key="k")
    yield client
    await client.close()


async def collect(engine: SglangEngine, request: GenerateRequest = REQUEST) -> list[EngineChunk]:
    """All chunks of a generation, within the deadline."""
    async with asyncio.timeout(DEADLINE_S), engine.generate(request) as stream:
        assert stream.status == 200
        return [chunk async for chunk in stream]


async def read_into(seen: list[int], engine: SglangEngine) -> None:
    """Collects ids for as long as the stream lasts."""
    async with asyncio.timeout(DEADLINE_S), engine.generate(REQUEST) as stream:
        async for chunk in stream:
            seen += chunk.new_ids


async def test_a_generation(fake: FakeSglang, engine: SglangEngine) -> None:
    """Ids, logprobs, finish, weight spans and the prompt's echo; the session is the routing key; nothing is aborted."""
    chunks = await collect(engine)
    assert [i for chunk in chunks for i in chunk.new_ids] == [7, 8, 9]
    assert [p for chunk in chunks for p in chunk.new_logprobs] == [-0.5] * 3
    finish = chunks[-1].finish
    assert finish is not None
    assert [(span.version, span.start, span.end) for span in finish.weight_spans] == [("a", 0, 2), ("b", 2, 3)]
    assert (finish.prompt_tokens, finish.completion_tokens, finish.cached_tokens, finish.prompt_ids) == (
        3,
        3,
        2,
        [1, 2, 3],
    )
    assert fake.asked[0]["input_ids"] == [1, 2, 3]
    assert fake.headers[0]["x-smg-routing-key"] == "session-1"
    assert fake.headers[0]["authorization"] == "Bearer k"
    await engine.close()
    assert fake.aborted.empty()


async def test_a_consumer_may_pause(fake: FakeSglang, engine: SglangEngine) -> None:
    """Leaving the loop and entering it again goes on where it was, also inside one batch of events."""

    async def batch(request: web.Request, response: web.StreamResponse) -> None:
        parts = [[7], [8], [9]]
        events = [
            {"output_ids": ids, "meta_info": {"completion_tokens": n, "finish_reason": None}}
            for n, ids in enumerate(parts, 1)
        ]
        events[-1]["meta_info"]["finish_reason"] = {"type": "length", "length": 3}  # type: ignore[index]
        await response.write(
            b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        )

    fake.answer = batch
    async with asyncio.timeout(DEADLINE_S), engine.generate(REQUEST) as stream:
        async for first in stream:
            assert first.new_ids == [7]
            break
        assert [chunk.new_ids async for chunk in stream] == [[8], [9]]


async def test_connections_are_pooled(fake: FakeSglang, engine: SglangEngine) -> None:
    """Calls one after the other share a connection."""
    for _ in range(3):
        await collect(engine)
    assert len(fake.peers) == 1


async def test_leaving_early_aborts(fake: FakeSglang, engine: SglangEngine) -> None:
    """A consumer that stops reading frees the engine: the connection closes and the request is aborted by its id."""
    fake.answer = fake.endless
    async with asyncio.timeout(DEADLINE_S):
        async with engine.generate(REQUEST) as stream:
            async for chunk in stream:
                assert chunk.new_ids == [7]
                break
        assert await fake.aborted.get() == "r-1"
        await fake.left.wait()


async def test_cancelling_aborts(fake: FakeSglang, engine: SglangEngine) -> None:
    """So does cancelling the consumer, while it waits for a token or for the status."""

    async def consume(heard: asyncio.Event) -> None:
        async with engine.generate(REQUEST) as stream:
            async for _ in stream:
                heard.set()

    fake.answer = fake.endless
    async with asyncio.timeout(DEADLINE_S):
        heard = asyncio.Event()
        task = asyncio.create_task(consume(heard))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await fake.aborted.get() == "r-1"


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "retry_s"),
    [
        (429, {"retry-after": "7"}, '{"error":{"message":"slow down"}}', "overloaded", 7.0),
        (503, {"retry-after": "3"}, "full", "engine_unavailable", 3.0),
        (400, {}, '{"error":{"message":"longer than the model\'s context length"}}', "context_overflow", None),
        (400, {}, '{"error":"bad"}', "bad_request", None),
        (500, {}, "", "engine_error", None),
    ],
)
async def test_refusals(
    fake: FakeSglang,
    engine: SglangEngine,
    *,
    status: int,
    headers: dict[str, str],
    body: str,
    kind: str,
    retry_s: float | None,
) -> None:
    """An early error is an error before the stream, with its retry time; nothing needs to be aborted."""
    fake.refusal = web.Response(status=status, headers=headers, text=body)
    with pytest.raises(ProxyError) as raised:
        await collect(engine)
    assert raised.value.kind == kind
    assert retry_s is None or raised.value.retry_after_s == retry_s
    await engine.close()
    assert fake.aborted.empty()


async def test_an_unreachable_engine(engine: SglangEngine, unused_tcp_port: int) -> None:
    """Nobody listens: unavailable, to be retried; the message names the engine."""
    dead = SglangEngine(f"http://127.0.0.1:{unused_tcp_port}")
    with pytest.raises(ProxyError) as raised:
        await collect(dead)
    assert raised.value.kind == "engine_unavailable"
    assert str(unused_tcp_port) in raised.value.message
    with pytest.raises(ProxyError):
        await dead.probe([1])
    await dead.abort("r")  # never raises
    await dead.close()


async def test_a_stream_that_breaks(fake: FakeSglang, engine: SglangEngine) -> None:
    """An error event, an end without a finish and a cut connection are engine errors, after what was sampled."""

    async def error_event(request: web.Request, response: web.StreamResponse) -> None:
        await fake.send(response, [7], 1)
        await response.write(b'data: {"error":{"message":"died","type":"x","code":500}}\n\ndata: [DONE]\n\n')

    async def no_finish(request: web.Request, response: web.StreamResponse) -> None:
        await fake.send(response, [7], 1)

    async def cut(request: web.Request, response: web.StreamResponse) -> None:
        await fake.send(response, [7], 1)
        assert request.transport is not None
        request.transport.abort()

    for answer in (error_event, no_finish, cut):
        fake.answer = answer
        seen: list[int] = []
        with pytest.raises(ProxyError) as raised:
            await read_into(seen, engine)
        assert raised.value.kind == "engine_error"
        assert seen == [7] or answer is cut  # a reset may overtake what is on its way


async def test_a_silent_engine_times_out_and_is_aborted(fake: FakeSglang, engine: SglangEngine) -> None:
    """The call's deadline holds, and the engine is told."""
    fake.answer = fake.endless
    request = GenerateRequest(rid="slow", session_id="s", input_ids=[1], timeout_s=0.3)
    with pytest.raises(ProxyError) as raised:
        await collect(engine, request)
    assert raised.value.kind == "engine_error"
    async with asyncio.timeout(DEADLINE_S):
        assert await fake.aborted.get() == "slow"


async def test_probe_and_tokenize(engine: SglangEngine) -> None:
    """What the engine says of itself and what it was seen to give; its ids of a text and of a conversation."""
    info = await engine.probe([1, 2, 3])
    assert (info.kind, info.model, info.weight_version, info.context_length, info.gaps, info.gives_ids) == (
        "sglang",
        "served",
        "step-1",
        4096,
        (),
        True,
    )
    assert info.logprobs_mode == "raw"  # this fake's don't follow the temperature
    assert await engine.tokenize("x") == [4, 5]
    assert await engine.render([{"role": "user", "content": "x"}]) == [4, 5]


async def test_an_empty_id_is_never_aborted(fake: FakeSglang, engine: SglangEngine) -> None:
    """It would stop every request of the engine."""
    await engine.abort("")
    assert fake.aborted.empty()
