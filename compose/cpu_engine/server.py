"""The server process: application, start, ready line, shutdown on SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from aiohttp import web
from pydantic import ValidationError

from compose.cpu_engine import control, routes
from compose.cpu_engine.model import ModelError
from compose.cpu_engine.protocol import describe
from compose.cpu_engine.scripted import PolicyError
from compose.cpu_engine.service import Engine
from compose.cpu_engine.settings import EngineSettings

# A prompt of 131k ids is under 1 MB; aiohttp's own bound is 1 MB, text prompts and tool lists can be larger.
MAX_BODY_BYTES = 256 * 2**20
SHUTDOWN_S = 1.0


def build_app(engine: Engine) -> web.Application:
    """The application with its routes; the scheduler runs for as long as it does."""
    app = web.Application(middlewares=[control.schema_errors], client_max_size=MAX_BODY_BYTES)
    app[routes.ENGINE] = engine
    app.cleanup_ctx.append(_scheduling)
    for method in ("POST", "PUT"):
        app.router.add_route(method, "/generate", routes.generate)
    for path in ("/v1/tokenize", "/tokenize"):
        app.router.add_post(path, routes.tokenize)
    for path in ("/v1/detokenize", "/detokenize"):
        app.router.add_post(path, routes.detokenize)
    app.router.add_post("/abort_request", control.abort_request)
    app.router.add_post("/pause_generation", control.pause_generation)
    app.router.add_post("/continue_generation", control.continue_generation)
    app.router.add_post("/update_weights_from_disk", control.update_weights_from_disk)
    app.router.add_post("/update_weight_version", control.update_weight_version)
    for method in ("GET", "POST"):
        app.router.add_route(method, "/flush_cache", control.flush_cache)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, control.model_info)
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, control.server_info)
    app.router.add_get("/v1/models", control.models)
    app.router.add_get("/health", control.health)
    app.router.add_get("/health_generate", control.health_generate)
    app.router.add_get("/ready", control.ready)
    return app


async def _scheduling(app: web.Application) -> AsyncIterator[None]:
    engine = app[routes.ENGINE]
    task = asyncio.create_task(engine.scheduler.run(), name="engine-steps")
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if engine.policy is not None:
        engine.policy.close()


@contextlib.asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[str]:
    """Serve on the settings' host and port; yields the base URL."""
    settings = engine.settings
    # With handler_cancellation a client that disconnects cancels its handler, which aborts its request.
    runner = web.AppRunner(build_app(engine), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
        port = runner.addresses[0][1]
        if settings.port_file is not None:
            _write_atomically(settings.port_file, f"{port}\n")
        yield f"http://{settings.host}:{port}"
    finally:
        await runner.cleanup()


async def serve(engine: Engine) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with serving(engine) as url:
        policy = engine.settings.policy or "sampled from the model"
        print(f"engine ready {url} model={engine.model.path} replies={policy}", flush=True)  # noqa: T201 - the ready line
        await stopped.wait()


def parse_arguments(arguments: Sequence[str]) -> EngineSettings:
    """Settings from a command line; exits with status 2 and a message when they don't fit."""
    parser = argparse.ArgumentParser(
        prog="python -m compose.cpu_engine", description="CPU inference server speaking SGLang's protocol"
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="Hugging Face model directory, or 'tiny' for the demo model"
    )
    parser.add_argument("--host", default=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=argparse.SUPPRESS, help="0 (the default) takes a free port")
    parser.add_argument("--port-file", type=Path, default=argparse.SUPPRESS, help="written with the port when ready")
    parser.add_argument(
        "--policy", default=argparse.SUPPRESS, help="scripted:MODULE:FUNCTION chooses the text of replies"
    )
    parser.add_argument("--served-model-name", default=argparse.SUPPRESS)
    parser.add_argument("--weight-version", default=argparse.SUPPRESS)
    parser.add_argument("--incremental-streaming-output", action="store_true", default=argparse.SUPPRESS)
    parser.add_argument("--context-length", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--max-running-requests", type=int, default=argparse.SUPPRESS)
    parser.add_argument("--chunk-tokens", type=int, default=argparse.SUPPRESS, help="prompt tokens computed per step")
    parser.add_argument("--cache-tokens", type=int, default=argparse.SUPPRESS, help="bound of the prefix cache")
    parser.add_argument(
        "--token-delay-ms", type=float, default=argparse.SUPPRESS, help="least time between two tokens of a reply"
    )
    try:
        return EngineSettings(**vars(parser.parse_args(arguments)))
    except ValidationError as exc:
        parser.error(describe(exc))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine; returns the exit status (0 stopped by a signal, 1 can't start)."""
    settings = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings; policies are looked up from where one stands
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        if str(settings.model) == "tiny":
            from compose.cpu_engine.tiny_model import TinyModelError, ensure_tiny_model

            try:
                settings = settings.model_copy(update={"model": ensure_tiny_model()})
            except TinyModelError as exc:
                raise ModelError(str(exc)) from exc
        engine = Engine.load(settings)
    except (ModelError, PolicyError) as exc:
        print(f"engine can't start: {exc}", file=sys.stderr)  # noqa: T201 - a command's error
        return 1
    try:
        asyncio.run(serve(engine))
    except OSError as exc:
        print(f"engine can't listen on {settings.host}:{settings.port}: {exc}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
