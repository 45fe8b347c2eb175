"""Proxies that the tests write by hand, and a route that they switch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from stage_workers.model_socket import ModelSocket, RouteOver, SocketLimits, Upstream
from stage_workers.model_socket.exchange import Budget
from stage_workers.model_socket.limits import Tally
from stage_workers.runtimes.network import listen_here

Handler = Callable[["StubProxy", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
DEADLINE_S = 20.0


def request(body: bytes = b"{}", path: str = "/v1/chat") -> bytes:
    return b"POST %s HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)) + body


def answer(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    return await read_request(reader)


class StubProxy:
    """A TCP server; `serve` deals with each of its connections."""

    def __init__(self, name: bytes, serve: Handler) -> None:
        self.name = name
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.go_on = asyncio.Event()
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> Upstream:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", port, limit=1 << 24)
        return Upstream("127.0.0.1", self._server.sockets[0].getsockname()[1], 1)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await self._serve(self, reader, writer)
        self._writers.discard(writer)
        writer.close()

    @property
    def connections(self) -> int:
        return len(self._writers)

    def die(self) -> None:
        """As a killed process: the listener and every connection are gone at once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        self.die()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def echo(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with the proxy's name and the request's body."""
    while True:
        body = await read_request(reader)
        proxy.requests.append(body)
        writer.write(answer(proxy.name + body))


async def silent(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes a request and says nothing."""
    proxy.requests.append(await read_request(reader))
    proxy.arrived.set()
    await proxy.go_on.wait()


async def half(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins an answer and doesn't end it."""
    proxy.requests.append(await read_request(reader))
    writer.write(answer(b"0123456789")[:-5])
    await writer.drain()
    proxy.arrived.set()
    await proxy.go_on.wait()


class StubRoute:
    """The test says which proxy is the session's; `looks` counts how often one was wondered about."""

    def __init__(self, upstream: Upstream | None) -> None:
        self.upstream = upstream
        self.is_over = False
        self.looks = 0
        self._changed = asyncio.Event()

    def use(self, upstream: Upstream | None, writer: int = 2) -> None:
        self.upstream = None if upstream is None else Upstream(upstream.host, upstream.port, writer)
        self._changed.set()

    def end(self) -> None:
        self.is_over = True
        self.upstream = None
        self._changed.set()

    def peek(self) -> Upstream | None:
        return self.upstream

    async def current(self) -> Upstream:
        while self.upstream is None:
            if self.is_over:
                raise RouteOver("over")
            self._changed.clear()
            await self._changed.wait()
        return self.upstream

    async def verified(self, upstream: Upstream) -> Upstream:
        del upstream
        self.looks += 1
        return await self.current()


@asynccontextmanager
async def listening(
    route: StubRoute, limits: SocketLimits | None = None, budget: Budget | None = None
) -> AsyncIterator[tuple[ModelSocket, int, Tally]]:
    """A model socket on the loopback: itself, its port, its tally."""
    tally = Tally()
    socket = ModelSocket(listen_here(), route, limits or SocketLimits(), budget or Budget(1 << 28), tally)
    await socket.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield socket, int(socket.address.rpartition(":")[2]), tally
    finally:
        await socket.close()
