"""Small servers that speak engines' protocols as the real ones were seen to, for the clients' tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from capture_proxy.engines import EngineChunk, GenerateRequest
from capture_proxy.engines.base import Engine

DEADLINE_S = 10.0


def sse(*values: Any) -> bytes:
    """A whole stream: an event per value, then the end."""
    return b"".join(
        b"data: " + (v if isinstance(v, bytes) else orjson.dumps(v)) + b"\n\n" for v in (*values, b"[DONE]")
    )


class Server:
    """Answers each path with what a test has put there; remembers bodies and headers of what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.headers: list[Any] = []

    def bodies(self, path: str) -> list[Any]:
        """The bodies that came to a path."""
        return [body for asked, body in self.asked if asked == path]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        body = orjson.loads(data) if data else None
        self.asked.append((request.path, body))
        self.headers.append(request.headers)
        answer = self.answers.get(request.path)
        if callable(answer):
            answer = answer(body)
        if answer is None:
            return web.json_response({"error": {"message": f"no such path: {request.path}"}}, status=404)
        if isinstance(answer, web.Response):
            return answer
        if isinstance(answer, bytes):
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(answer)
            await response.write_eof()
            return response
        return web.json_response(answer)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        """Listens on a free port."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


def refuse(status: int, message: str, **headers: str) -> web.Response:
    """An engine's refusal."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status, headers=headers)


async def collect(engine: Engine, request: GenerateRequest) -> list[EngineChunk]:
    """All chunks of a generation, within the deadline."""
    async with asyncio.timeout(DEADLINE_S), engine.generate(request) as stream:
        return [chunk async for chunk in stream]


def ids_of(chunks: list[EngineChunk]) -> list[int]:
    """All output ids."""
    return [i for chunk in chunks for i in chunk.new_ids]


def logprobs_of(chunks: list[EngineChunk]) -> list[float]:
    """All logprobs."""
    return [value for chunk in chunks for value in chunk.new_logprobs]


# --- vLLM's shapes


def vllm_event(
    ids: list[int], *, finish: str | None = None, stop: Any = None, spans: Any = None, **more: Any
) -> dict[str, Any]:
    """One event of `/inference/v1/generate`; each id's logprob is a hundredth of it, negative."""
    content = [{"token_id": i, "logprob": -i / 100, "rank": 1, "top_logprobs": []} for i in ids]
    choice = {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": spans,
        "logprobs": {"content": content},
    }
    return {"request_id": "generate-tokens-r", "usage": None, "output_mode": "tokens", "choices": [choice], **more}


def vllm_usage(prompt: int, completion: int) -> dict[str, Any]:
    """The event of counts that ends a stream."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"request_id": "generate-tokens-r", "usage": usage, "output_mode": "tokens", "choices": []}


def chat_event(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """One event of `/v1/chat/completions`; `prompt_token_ids` and `usage` stand beside the choices."""
    top = {name: choice.pop(name) for name in ("prompt_token_ids", "usage", "sglext", "metadata") if name in choice}
    entry = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **choice}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [entry], **top}


def chat_usage(prompt: int, completion: int) -> dict[str, Any]:
    """The event of counts before the end."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage}


def entries(*logprobs: float) -> dict[str, Any]:
    """Logprobs as OpenAI gives them: without ids."""
    return {"content": [{"token": "t", "logprob": value, "bytes": [116], "top_logprobs": []} for value in logprobs]}
