"""Serves the API: uvicorn on one socket, with the bus behind it, until a signal."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import structlog
import uvicorn

from bus import BusSettings, connect
from compose.api.app import create_app
from compose.api.settings import ApiSettings

_log = structlog.get_logger(__name__)

CONNECTIONS: Final = 512
"""Requests at once; more are answered with 503."""

STOP_WITHIN_S: Final = 10
"""How long requests in hand may take when the process is asked to end."""


def listen(settings: ApiSettings) -> socket.socket:
    """The listening socket: on the port that is set, or the last time's, or a free one. OSError when it can't be had."""
    if settings.port or settings.port_file is None:
        return _bound(settings.host, settings.port)
    text = settings.port_file.read_text() if settings.port_file.exists() else ""
    try:
        sock = _bound(settings.host, int(text) if text.isdigit() else 0)
    except (OSError, OverflowError):  # somebody else has it by now
        sock = _bound(settings.host, 0)
    settings.port_file.parent.mkdir(parents=True, exist_ok=True)
    settings.port_file.write_text(str(sock.getsockname()[1]))
    return sock


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError):
        sock.close()
        raise
    return sock


def url_of(settings: ApiSettings, sock: socket.socket) -> str:
    """Where the API is reached from this machine."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{sock.getsockname()[1]}"


async def run(
    settings: ApiSettings,
    bus_settings: BusSettings,
    stop: asyncio.Event,
    *,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until `stop`; `on_ready` gets the URL once requests are taken (reads then wait for the log)."""
    sock = listen(settings)
    url = url_of(settings, sock)
    try:
        async with connect(bus_settings) as bus:
            config = uvicorn.Config(
                create_app(bus, settings),
                log_config=None,
                access_log=False,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=STOP_WITHIN_S,
                server_header=False,
                lifespan="on",
            )
            server = _Server(config, lambda: on_ready(url))
            _log.info("api.started", url=url)
            stopping = asyncio.create_task(_end(server, stop))
            try:
                await server.serve(sockets=[sock])
            finally:
                stopping.cancel()
            _log.info("api.stopped", url=url)
    finally:
        sock.close()


async def _end(server: uvicorn.Server, stop: asyncio.Event) -> None:
    await stop.wait()
    server.should_exit = True


class _Server(uvicorn.Server):
    """Tells when it takes requests, and leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """None: uvicorn would raise the signal again, and end this process before the bus is closed."""
        yield

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_started()


def document() -> str:
    """The OpenAPI document as JSON, without a log behind it."""
    from pydantic import SecretStr

    from bus.memory import MemoryBus

    app = create_app(MemoryBus(), ApiSettings(key=SecretStr("unused")))
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False)
