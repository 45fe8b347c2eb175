"""HTTP routes that steer the engine (abort, pause, weights) or describe it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from compose.cpu_engine.model import ModelError
from compose.cpu_engine.protocol import (
    AbortRequest,
    GenerateRequest,
    PauseRequest,
    RequestError,
    UpdateVersionRequest,
    UpdateWeightsRequest,
    flat_error,
)
from compose.cpu_engine.routes import ENGINE, json_response, parse, read_json
from compose.cpu_engine.service import Engine

# Which of SGLang's releases the routes imitate; clients that look at the version decide by it.
PROTOCOL_VERSION = "0.5.23"
HEALTH_LIMIT_S = 20.0  # SGLang's HEALTH_CHECK_TIMEOUT


async def abort_request(request: web.Request) -> web.Response:
    """End one request (by the beginning of its id) or all; an unknown or empty id changes nothing."""
    asked = parse(AbortRequest, await read_json(request))
    if asked.abort_all or asked.rid:
        request.app[ENGINE].scheduler.abort(None if asked.abort_all else asked.rid)
    return web.Response()


async def pause_generation(request: web.Request) -> web.Response:
    """Stop between two steps; new requests wait."""
    asked = parse(PauseRequest, await read_json(request))
    await request.app[ENGINE].scheduler.pause(asked.mode)
    return json_response({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(request: web.Request) -> web.Response:
    """Go on after a pause."""
    request.app[ENGINE].scheduler.resume()
    return json_response({"message": "Generation continued successfully.", "status": "ok"})


async def update_weights_from_disk(request: web.Request) -> web.Response:
    """Load other weights of the same architecture."""
    engine = request.app[ENGINE]
    asked = parse(UpdateWeightsRequest, await read_json(request))
    if asked.abort_all_requests:
        engine.scheduler.abort(None)
    try:
        paused, is_flushed = await engine.scheduler.load_weights(
            Path(asked.model_path), version=asked.weight_version, flush_cache=asked.flush_cache
        )
    except ModelError as exc:
        return json_response({"success": False, "message": str(exc), "num_paused_requests": 0}, status=400)
    if not is_flushed:
        # As in SGLang 0.5.23, where this 400 also comes after weights and version did change.
        message = (
            "Weights and version are updated, but the cache can't be flushed while requests run: send flush_cache=false"
        )
        return json_response({"success": False, "message": message, "num_paused_requests": paused}, status=400)
    message = "Succeeded to update model weights."
    if asked.weight_version is not None:
        message += f" Weight version updated to {asked.weight_version}."
    return json_response({"success": True, "message": message, "num_paused_requests": paused})


async def update_weight_version(request: web.Request) -> web.Response:
    """Give the weights another version without changing them."""
    scheduler = request.app[ENGINE].scheduler
    asked = parse(UpdateVersionRequest, await read_json(request))
    if asked.abort_all_requests:
        scheduler.abort(None)
    scheduler.set_version(asked.new_version)
    message = f"Weight version updated to {asked.new_version}"
    return json_response({"success": True, "message": message, "new_version": asked.new_version})


async def flush_cache(request: web.Request) -> web.Response:
    """Empty the prefix cache; refused while requests run."""
    if request.app[ENGINE].scheduler.flush_cache():
        return web.Response(text="Cache flushed.\n")
    return web.Response(text="Flush cache failed: requests are running.\n", status=400)


async def model_info(request: web.Request) -> web.Response:
    """Model, tokenizer and weight version."""
    engine = request.app[ENGINE]
    return json_response(
        {
            "model_path": str(engine.model.path),
            "served_model_name": _served_name(engine),
            "tokenizer_path": str(engine.tokenizer.path),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": engine.scheduler.version,
            "load_format": "auto",
            "model_type": engine.model.model_type,
            "architectures": engine.model.architectures,
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }
    )


async def server_info(request: web.Request) -> web.Response:
    """Start-up settings and what is going on now."""
    engine = request.app[ENGINE]
    state: dict[str, Any] = {
        "running_requests": engine.scheduler.active_count,
        "cached_tokens": engine.scheduler.cached_tokens,
        "is_paused": engine.scheduler.is_paused,
        "busy_s": round(engine.scheduler.busy_s, 6),
        "up_s": round(time.monotonic() - engine.scheduler.started_at, 6),
    }
    settings = engine.settings.model_dump(mode="json", exclude={"model"})
    return json_response(
        {
            **settings,
            "model_path": str(engine.model.path),
            "context_length": engine.context_length,
            "internal_states": [state],
            "version": PROTOCOL_VERSION,
            "engine": "polynya-cpu",
            "pid": os.getpid(),
        }
    )


async def models(request: web.Request) -> web.Response:
    """OpenAI's list of models: this one."""
    engine = request.app[ENGINE]
    name = _served_name(engine)
    card = {
        "id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": name,
        "parent": None, "max_model_len": engine.context_length,
    }  # fmt: skip
    return json_response({"object": "list", "data": [card]})


async def health(_request: web.Request) -> web.Response:
    """Whether the server answers (cheap, as SGLang's with its generation switched off)."""
    return web.Response()


async def health_generate(request: web.Request) -> web.Response:
    """Whether one token can be generated in time; 503 if not."""
    engine = request.app[ENGINE]
    body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
    try:
        async with asyncio.timeout(HEALTH_LIMIT_S):
            sequence = await engine.begin(GenerateRequest.model_validate(body), body, scripted=False)
            while not sequence.is_over:
                sequence.changed.clear()
                await sequence.changed.wait()
    except TimeoutError:
        return web.Response(status=503)
    return web.Response(status=200 if sequence.error is None else 503)


async def ready(request: web.Request) -> web.Response:
    """Whether new requests would be served now: 503 while paused."""
    return web.Response(status=503 if request.app[ENGINE].scheduler.is_paused else 200)


@web.middleware
async def schema_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Bodies that don't fit a route's schema are answered as SGLang does."""
    try:
        response: web.StreamResponse = await handler(request)
    except RequestError as exc:
        return json_response(flat_error(str(exc), exc.status), status=exc.status)
    return response


def _served_name(engine: Engine) -> str:
    return engine.settings.served_model_name or str(engine.model.path)
