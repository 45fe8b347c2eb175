"""HTTP routes of `/generate` and the tokenizer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, ValidationError

from compose.cpu_engine.protocol import (
    DetokenizeRequest,
    GenerateRequest,
    RequestError,
    TokenizeRequest,
    describe,
    flat_error,
    stream_error,
)
from compose.cpu_engine.responses import ReplyWriter
from compose.cpu_engine.sequence import Sequence
from compose.cpu_engine.service import Engine

ENGINE = web.AppKey("engine", Engine)
PROBE_RID = "probe-"
B = TypeVar("B", bound=BaseModel)


def json_response(body: Any, *, status: int = 200) -> web.Response:
    """A JSON response; `body` is serialised unless it is bytes already."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return web.Response(body=data, status=status, content_type="application/json")


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object; raises `RequestError`. An empty body is an empty object."""
    data = await request.read()
    if not data.strip():
        return {}
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise RequestError(f"the body is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def parse(model: type[B], body: dict[str, Any]) -> B:
    """The body as a checked request; raises `RequestError` that names each field."""
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        raise RequestError(describe(exc)) from exc


async def generate(request: web.Request) -> web.StreamResponse:
    """`/generate`: a prompt in, tokens with their log-probabilities out."""
    engine = request.app[ENGINE]
    try:
        body = await read_json(request)
    except RequestError as exc:
        return json_response(flat_error(str(exc), exc.status), status=exc.status)
    try:
        asked = parse(GenerateRequest, body)
    except RequestError as exc:
        return json_response(
            {"error": str(exc)}, status=exc.status
        )  # the contract's own shape in SGLang: a plain string
    if asked.stream:
        return await _stream(request, engine, asked, body)
    try:
        sequence = await engine.begin(asked, body, scripted=not is_probe(asked))
    except RequestError as exc:
        return json_response({"error": {"message": str(exc)}}, status=exc.status)
    writer = ReplyWriter(asked, sequence, engine.tokenizer, is_incremental=False)
    try:
        while not sequence.is_over:
            sequence.changed.clear()
            await sequence.changed.wait()
    finally:
        _let_go(engine, sequence)
    if sequence.error is not None:
        return json_response({"error": {"message": sequence.error}}, status=500)
    return json_response(writer.whole(engine.scheduler.version))


def is_probe(asked: GenerateRequest) -> bool:
    """Whether a client only tries out what the engine gives: a policy, which may count or wait for its calls, isn't asked."""
    return (asked.rid or "").startswith(PROBE_RID)


async def _stream(
    request: web.Request, engine: Engine, asked: GenerateRequest, body: dict[str, Any]
) -> web.StreamResponse:
    incremental = engine.settings.incremental_streaming_output
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    try:
        sequence = await engine.begin(asked, body, scripted=not is_probe(asked))
    except RequestError as exc:
        if exc.status >= 500:  # a broken policy: not the caller's fault, and easier to see as a status
            return json_response({"error": {"message": str(exc)}}, status=exc.status)
        await response.prepare(request)
        await _write(response, orjson.dumps(stream_error(str(exc), exc.status)))
    else:
        try:
            await response.prepare(request)
            await _write_events(
                response, engine, ReplyWriter(asked, sequence, engine.tokenizer, is_incremental=incremental)
            )
        except ConnectionResetError:
            return response  # the client left
        finally:
            _let_go(engine, sequence)
    await _write(response, b"[DONE]")
    await response.write_eof()
    return response


async def _write_events(response: web.StreamResponse, engine: Engine, writer: ReplyWriter) -> None:
    """One event per token, or per several when they come faster than the interval or than the client reads."""
    sequence = writer.sequence
    sent = 0
    interval_s = engine.settings.stream_interval_ms / 1000
    due_at = 0.0
    while True:
        count = len(sequence.output_ids)
        is_over = sequence.is_over
        if sequence.error is not None:
            await _write(response, orjson.dumps(stream_error(sequence.error, 500)))
            return
        left_s = due_at - time.monotonic() if interval_s else 0.0
        if is_over or (count > sent and left_s <= 0):
            for reached, version in _by_version(sequence, sent, count, engine.scheduler.version):
                await _write(response, writer.event(reached, version))
            sent, due_at = count, time.monotonic() + interval_s
        if is_over:
            return
        if not sequence.is_over and (left_s > 0 or len(sequence.output_ids) == sent):
            sequence.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s if left_s > 0 and len(sequence.output_ids) > sent else None):
                    await sequence.changed.wait()


def _by_version(sequence: Sequence, sent: int, count: int, version: str) -> list[tuple[int, str]]:
    """Up to which output token each of the next events reaches, and which weights made its tokens; `version` where it has none."""
    spans = [(min(end, count), made_by) for made_by, begin, end in sequence.spans if end > sent and begin < count]
    return spans or [(count, version)]


async def _write(response: web.StreamResponse, data: bytes) -> None:
    await response.write(b"data: " + data + b"\n\n")


def _let_go(engine: Engine, sequence: Sequence) -> None:
    """The handler ends: if the request hasn't, its client is gone and nobody wants the rest."""
    if not sequence.is_over:
        engine.scheduler.abort_one(sequence)


async def tokenize(request: web.Request) -> web.Response:
    """`/v1/tokenize`: ids of a prompt, or of messages through the chat template."""
    engine = request.app[ENGINE]
    try:
        asked = parse(TokenizeRequest, await read_json(request))
        tokens = await asyncio.to_thread(_tokenize, engine, asked)
    except (RequestError, ValueError) as exc:
        return json_response(flat_error(str(exc), 400), status=400)
    count = [len(ids) for ids in tokens] if isinstance(asked.prompt, list) else len(tokens)
    return json_response({"tokens": tokens, "count": count, "max_model_len": engine.context_length})


def _tokenize(engine: Engine, asked: TokenizeRequest) -> list[Any]:
    tokenizer = engine.tokenizer
    if isinstance(asked.prompt, str):
        return tokenizer.encode(asked.prompt, add_special_tokens=asked.add_special_tokens)
    if asked.prompt is not None:
        return [tokenizer.encode(text, add_special_tokens=asked.add_special_tokens) for text in asked.prompt]
    options = {
        "add_generation_prompt": asked.add_generation_prompt is not False and not asked.continue_final_message,
        "continue_final_message": asked.continue_final_message,
        **(asked.chat_template_kwargs or {}),
    }
    return tokenizer.encode(tokenizer.render(asked.messages or [], asked.tools, options))


async def detokenize(request: web.Request) -> web.Response:
    """`/detokenize`: text of ids."""
    engine = request.app[ENGINE]
    try:
        asked = parse(DetokenizeRequest, await read_json(request))
    except RequestError as exc:
        return json_response(flat_error(str(exc), 400), status=400)
    nested = [ids for ids in asked.tokens if isinstance(ids, list)]
    flat = [i for i in asked.tokens if isinstance(i, int)]
    if any(not 0 <= i < engine.model.vocab_size for ids in [*nested, flat] for i in ids):
        return json_response(flat_error("tokens: ids outside of the vocabulary", 400), status=400)
    texts = [engine.tokenizer.decode(ids, skip_special_tokens=asked.skip_special_tokens) for ids in nested or [flat]]
    return json_response({"text": texts if nested else texts[0]})
