"""Where the API listens."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from bus import BusSettings
from compose.api import service
from compose.api.service import listen, url_of
from tests.compose.api.conftest import AUTH, settings


def test_a_restarted_api_has_its_address_again(tmp_path) -> None:
    """A port that was chosen free is remembered; another one is taken when somebody has it, or when the note is no port."""
    chosen = settings(port_file=tmp_path / "run" / "api.port")
    with listen(chosen) as first:
        url = url_of(chosen, first)
        first.listen()
        with listen(chosen) as other:
            assert url_of(chosen, other) != url
            port = other.getsockname()[1]
    with listen(chosen) as again:
        assert again.getsockname()[1] == port
    for note in ("", "no port", "99999999"):
        (tmp_path / "run" / "api.port").write_text(note)
        with listen(chosen) as some:
            assert some.getsockname()[1] > 0


def test_a_port_that_is_set_is_taken_or_nothing() -> None:
    """No other address than the one that was asked for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=r"[Aa]ddress"):
            listen(settings(port=taken.getsockname()[1]))


async def test_the_server_takes_requests_when_it_says_so_and_ends_when_asked(monkeypatch, memory_bus) -> None:
    """Ready means that a request is answered; after `stop` the socket is closed and the views have stopped."""
    monkeypatch.setattr(service, "connect", lambda _: memory_bus)
    stop, urls = asyncio.Event(), asyncio.Queue[str]()
    running = asyncio.create_task(service.run(settings(), BusSettings(), stop, on_ready=urls.put_nowait))
    async with asyncio.timeout(20):
        url = await urls.get()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/api/nodes", headers=AUTH)).json() == {"nodes": []}
            stop.set()
            await running
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{url}/api/health")
