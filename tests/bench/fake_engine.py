"""An engine that answers at once: SGLang's `/generate` stream with ids of the real tokenizer, and the same answer as chat.

What is measured is what stands before an engine, so this one only costs what writing a stream costs. `/generate` speaks as
SGLang does by default: every event repeats everything so far. `/v1/chat/completions` gives the same tokens, one chunk each, to
callers that come without the capture proxy.

`POST /bench/hold` makes it slow: from then on every reply stays open after its first token until `POST /bench/release`, which lets
them end one by one over some seconds. So any number of calls is in flight at once, however slow the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tests.bench.processes import raise_file_limit, say_ready

REPLY = "The three tests pass now, since the counter starts at zero and the file is closed."
END_OF_TURN = "<|im_end|>"
CONTEXT_LENGTH = 32_768
VERSION = "bench-0"
HOLD_AT_MOST_S = 120.0
"""A held reply ends after that anyhow: a bench that died must not leave a thousand of them."""
_NO_CACHE = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What is said to everybody: ids with their logprobs, the stop token last, and each token's text."""

    ids: list[int]
    texts: list[str]
    stop_id: int

    @property
    def triples(self) -> list[list[Any]]:
        """SGLang's logprob triples."""
        return [[-0.01 - (i % 90) / 100, i, None] for i in self.ids]


@dataclass(slots=True)
class Gate:
    """Holds replies between their first token and the rest."""

    spread_s: float = 0.0
    waiting: int = 0
    passed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Open, to begin with."""
        self.passed.set()

    async def pass_through(self) -> None:
        """Wait for the release, and then for one's turn."""
        if self.passed.is_set():
            return
        turn = self.waiting = self.waiting + 1
        try:
            async with asyncio.timeout(HOLD_AT_MOST_S):
                await self.passed.wait()
        except TimeoutError:
            self.release()
        await asyncio.sleep(self.spread_s * turn / self.waiting)

    def hold(self, spread_s: float) -> None:
        """Hold every reply from now on."""
        self.spread_s, self.waiting = spread_s, 0
        self.passed = asyncio.Event()

    def release(self) -> None:
        """Let them go."""
        self.passed.set()


def load_reply(model_dir: Path) -> tuple[Reply, Any]:
    """The reply in the model's own tokens, and the tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = tokenizer.encode(REPLY, add_special_tokens=False).ids
    stop_id = tokenizer.token_to_id(END_OF_TURN)
    if stop_id is None:
        raise SystemExit(f"{model_dir} has no {END_OF_TURN} token: the bench needs a Qwen tokenizer")
    return Reply([*ids, stop_id], [tokenizer.decode([i]) for i in ids], stop_id), tokenizer


def build_app(model_dir: Path) -> web.Application:
    """The engine's routes."""
    reply, tokenizer = load_reply(model_dir)
    triples = reply.triples
    count = len(reply.ids)
    gate = Gate()

    async def generate(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        prompt = body["input_ids"]
        echo = orjson.Fragment(orjson.dumps(prompt))
        response = web.StreamResponse(headers=_NO_CACHE)
        await response.prepare(request)
        began = time.perf_counter()
        for end in range(1, count + 1):
            meta: dict[str, Any] = {
                "id": body.get("rid", ""),
                "finish_reason": None,
                "prompt_tokens": len(prompt),
                "weight_version": VERSION,
                "output_token_logprobs": triples[:end],
                "completion_tokens": end,
                "cached_tokens": 0,
            }
            if end == count:
                meta["finish_reason"] = {"type": "stop", "matched": reply.stop_id}
                meta["weight_versions"] = [{"version": VERSION, "start": 0, "end": count}]
                meta["e2e_latency"] = time.perf_counter() - began
            text = "".join(reply.texts[:end])
            event = {"text": text, "output_ids": reply.ids[:end], "meta_info": meta}
            if body.get("return_prompt_token_ids"):
                event["prompt_token_ids"] = echo
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
            await _pause(gate, end)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def chat(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers=_NO_CACHE)
        await response.prepare(request)
        for end in range(1, count + 1):
            is_last = end == count
            delta = {} if is_last else {"content": reply.texts[end - 1]}
            chunk = {
                "id": "chatcmpl-bench",
                "object": "chat.completion.chunk",
                "created": 1_700_000_000,
                "model": "policy",
                "choices": [
                    {"index": 0, "delta": delta, "logprobs": None, "finish_reason": "stop" if is_last else None}
                ],
            }
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
            await _pause(gate, end)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def model_info(_: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": "bench", "served_model_name": "bench", "is_generation": True, "weight_version": VERSION}
        )

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "bench", "max_model_len": CONTEXT_LENGTH}]})

    async def tokenize(request: web.Request) -> web.Response:
        tokens = tokenizer.encode((await request.json())["prompt"], add_special_tokens=False).ids
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": CONTEXT_LENGTH})

    async def fine(_: web.Request) -> web.Response:
        return web.Response()

    async def hold(request: web.Request) -> web.Response:
        gate.hold(float((await request.json())["spread_s"]))
        return web.Response()

    async def release(_: web.Request) -> web.Response:
        gate.release()
        return web.Response()

    async def state(_: web.Request) -> web.Response:
        return web.json_response({"waiting": gate.waiting})

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/generate", generate)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/model_info", model_info)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/tokenize", tokenize)
    app.router.add_post("/abort_request", fine)
    app.router.add_get("/health", fine)
    app.router.add_post("/bench/hold", hold)
    app.router.add_post("/bench/release", release)
    app.router.add_get("/bench/state", state)
    return app


async def _pause(gate: Gate, sent: int) -> None:
    """Between two tokens: let others in, as an engine does."""
    if sent == 1:
        await gate.pass_through()
    await asyncio.sleep(0)


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until cancelled."""
    runner = web.AppRunner(build_app(arguments.model_dir), access_log=None, keepalive_timeout=600.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=8192).start()
    try:
        say_ready(arguments.ready, {"url": f"http://127.0.0.1:{runner.addresses[0][1]}"})
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """Run one engine until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--model-dir", type=Path, required=True)
    raise_file_limit()
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
