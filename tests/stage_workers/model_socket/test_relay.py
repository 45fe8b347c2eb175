"""Bytes to the session's proxy and back, and what becomes of them when that proxy dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from stage_workers.model_socket import SocketLimits, Upstream
from stage_workers.model_socket.exchange import Budget
from tests.stage_workers.model_socket.stubs import (
    StubProxy,
    StubRoute,
    answer,
    echo,
    half,
    listening,
    read_answer,
    read_request,
    request,
    silent,
)


class Proxies:
    """Makes proxies, and stops them at the end."""

    def __init__(self) -> None:
        self.made: list[StubProxy] = []

    async def start(self, name: bytes, serve: object) -> tuple[StubProxy, Upstream]:
        proxy = StubProxy(name, serve)  # type: ignore[arg-type]
        self.made.append(proxy)
        return proxy, await proxy.start()


@pytest.fixture
async def proxies() -> AsyncIterator[Proxies]:
    """Proxies of one test."""
    made = Proxies()
    yield made
    for proxy in made.made:
        await proxy.stop()


async def ask(port: int, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(request(body))
    return reader, writer


async def closes(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_one_connection_carries_many_calls(proxies: Proxies) -> None:
    """Calls in a row go to the same proxy on one connection, and come back unchanged."""
    proxy, upstream = await proxies.start(b"one:", echo)
    async with listening(StubRoute(upstream)) as (socket, port, tally):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(20):
            writer.write(request(b"%d" % number))
            assert await read_answer(reader) == b"one:%d" % number
            assert not socket.is_waiting
        assert proxy.connections == tally.connections == 1
        await closes(writer)


async def test_connections_are_held_while_there_is_no_proxy(proxies: Proxies) -> None:
    """A request that comes while the lease moves is answered by the next proxy, as if nothing had been."""
    _, upstream = await proxies.start(b"two:", echo)
    route = StubRoute(None)
    async with listening(route) as (socket, port, tally):
        asked = [await ask(port, b"x" * size) for size in (1, 100_000, 5_000_000)]
        while not socket.is_waiting or tally.connections < 3:
            await asyncio.sleep(0.01)
        route.use(upstream)
        for (reader, writer), size in zip(asked, (1, 100_000, 5_000_000), strict=True):
            assert await read_answer(reader) == b"two:" + b"x" * size
            await closes(writer)


async def test_an_unanswered_request_goes_to_the_next_proxy(proxies: Proxies) -> None:
    """The proxy dies with a request that it hasn't answered: the client gets the next proxy's answer on the same connection."""
    first, upstream = await proxies.start(b"one:", silent)
    second, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, tally):
        reader, writer = await ask(port, b"hello")
        await first.arrived.wait()
        route.use(other)
        first.die()
        assert await read_answer(reader) == b"two:hello"
        assert (first.requests, second.requests) == ([b"hello"], [b"hello"])
        assert (tally.resent, tally.cut) == (1, 0)
        writer.write(request(b"again"))
        assert await read_answer(reader) == b"two:again"
        await closes(writer)


async def test_half_a_request_goes_whole_to_the_next_proxy(proxies: Proxies) -> None:
    """The proxy dies while the request's body is still on its way: the next one gets all of it."""

    async def takes_a_part(proxy: StubProxy, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        proxy.requests.append(await reader.readexactly(40))
        proxy.arrived.set()
        await proxy.go_on.wait()

    first, upstream = await proxies.start(b"one:", takes_a_part)
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, _tally):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        whole = request(b"abc" * 100)
        writer.write(whole[:60])
        await first.arrived.wait()
        route.use(other)
        first.die()
        writer.write(whole[60:])
        assert await read_answer(reader) == b"two:" + b"abc" * 100
        await closes(writer)


async def test_a_broken_answer_is_cut_and_the_retry_goes_to_the_next_proxy(proxies: Proxies) -> None:
    """An answer that had begun ends with a reset, never in order: nobody may take its part for the whole."""
    first, upstream = await proxies.start(b"one:", half)
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, tally):
        reader, _writer = await ask(port, b"hello")
        await first.arrived.wait()
        await reader.readuntil(b"01234")
        route.use(other)
        first.die()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert (tally.cut, tally.is_last_cut) == (1, True)
        reader, writer = await ask(port, b"hello")
        assert await read_answer(reader) == b"two:hello"
        assert not tally.is_last_cut
        await closes(writer)


async def test_an_answer_without_a_length_that_ends_in_order_is_whole(proxies: Proxies) -> None:
    """A proxy that is well may end an answer by closing: the client sees the same end."""

    async def closing(_: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall of it")
        await writer.drain()

    _, upstream = await proxies.start(b"one:", closing)
    async with listening(StubRoute(upstream)) as (_, port, tally):
        reader, writer = await ask(port, b"x")
        assert (await reader.read()).endswith(b"all of it")
        assert tally.cut == 0
        await closes(writer)


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_a_last_answer_ends_the_connection(proxies: Proxies, version: bytes) -> None:
    """A client that asked for one answer, and reads until the end, sees the end that the proxy makes."""

    async def once(_: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(b"once"))
        await writer.drain()

    _, upstream = await proxies.start(b"one:", once)
    async with listening(StubRoute(upstream)) as (_, port, tally):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / " + version + b"\r\nConnection: close\r\ncontent-length: 1\r\n\r\nx")
        assert (await reader.read()).endswith(b"once")
        assert tally.cut == 0
        await closes(writer)


async def test_the_same_end_of_a_dead_proxy_is_a_cut(proxies: Proxies) -> None:
    """A killed process closes its sockets in order: a look tells that this was no end of an answer."""

    async def dying(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await writer.drain()
        proxy.arrived.set()
        await proxy.go_on.wait()

    first, upstream = await proxies.start(b"one:", dying)
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, tally):
        reader, _writer = await ask(port, b"x")
        await first.arrived.wait()
        await reader.readuntil(b"half")
        route.use(other)
        first.go_on.set()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert tally.cut == 1


async def test_idle_connections_survive_their_proxy(proxies: Proxies) -> None:
    """A kept-alive connection without a call on it outlives the proxy: its next call goes to the next one."""
    first, upstream = await proxies.start(b"one:", echo)
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, tally):
        reader, writer = await ask(port, b"a")
        assert await read_answer(reader) == b"one:a"
        first.die()
        route.use(other)
        writer.write(request(b"b"))
        assert await read_answer(reader) == b"two:b"
        assert tally.cut == 0
        await closes(writer)


async def test_idle_connections_move_with_the_lease(proxies: Proxies) -> None:
    """After a hand-over, the next call on an old connection goes to the new proxy, although the old one still listens."""
    first, upstream = await proxies.start(b"one:", echo)
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, _tally):
        reader, writer = await ask(port, b"a")
        assert await read_answer(reader) == b"one:a"
        route.use(other)
        writer.write(request(b"b"))
        assert await read_answer(reader) == b"two:b"
        assert first.requests == [b"a"]
        await closes(writer)


async def test_a_frozen_proxy_is_left(proxies: Proxies) -> None:
    """A proxy that hangs closes nothing: when it is given up, its requests go to the next, its answers are cut."""
    first, upstream = await proxies.start(b"one:", silent)
    stuck, _same = await proxies.start(b"stuck:", half)
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (socket, port, tally):
        reader, writer = await ask(port, b"hello")
        await first.arrived.wait()
        route.use(_same, writer=1)
        broken, _ = await ask(port, b"begun")
        await stuck.arrived.wait()
        await broken.readuntil(b"01234")
        route.use(other)
        socket.leave(upstream)
        socket.leave(_same)
        assert await read_answer(reader) == b"two:hello"
        with pytest.raises(ConnectionResetError):
            await broken.read()
        assert (tally.resent, tally.cut) == (1, 1)
        await closes(writer)


@pytest.mark.parametrize("status", [401, 409])
async def test_a_proxy_that_lost_the_lease_is_no_answer(proxies: Proxies, status: int) -> None:
    """A restarted or stopping proxy denies the secret: the request goes to where the lease is, the client sees nothing of it."""

    async def denying(_: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer(b"no such key", status))
            await writer.drain()

    _, upstream = await proxies.start(b"one:", denying)
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, tally):
        reader, writer = await ask(port, b"wrong secret")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert await reader.readexactly(11) == b"no such key"  # the lease is there: the client's own mistake
        assert route.looks == 1

        verified = route.verified

        async def moves(upstream: Upstream) -> Upstream:
            route.use(other)
            return await verified(upstream)

        route.verified = moves  # type: ignore[method-assign]
        writer.write(request(b"hello"))
        assert await read_answer(reader) == b"two:hello"
        assert tally.resent == 1
        await closes(writer)


async def test_a_request_that_kills_its_proxies_is_given_up(proxies: Proxies) -> None:
    """A well proxy that drops one request again and again: after some tries it is the client's turn."""

    async def dropping(proxy: StubProxy, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        proxy.requests.append(await read_request(reader))

    proxy, upstream = await proxies.start(b"one:", dropping)
    async with listening(StubRoute(upstream)) as (_, port, tally):
        reader, _writer = await ask(port, b"poison")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert proxy.requests == [b"poison"] * 4
        assert tally.cut == 1


async def test_nothing_too_large_is_sent_twice(proxies: Proxies) -> None:
    """A request above the bound isn't kept: the loss of its proxy is told to the client."""
    first, upstream = await proxies.start(b"one:", silent)
    second, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route, SocketLimits(resend_bytes=1000), Budget(2000)) as (_, port, _tally):
        reader, _writer = await ask(port, b"x" * 2000)
        await first.arrived.wait()
        route.use(other)
        first.die()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert second.requests == []


async def test_an_unreachable_proxy_is_wondered_about(proxies: Proxies) -> None:
    """Where nobody listens, the route is asked until it names a proxy that does."""
    dead, upstream = await proxies.start(b"one:", echo)
    dead.die()
    _, other = await proxies.start(b"two:", echo)
    route = StubRoute(upstream)
    async with listening(route) as (_, port, _tally):
        reader, writer = await ask(port, b"x")
        while not route.looks:
            await asyncio.sleep(0.01)
        route.use(other)
        assert await read_answer(reader) == b"two:x"
        await closes(writer)


async def test_held_no_longer_than_told(proxies: Proxies) -> None:
    """Without any proxy a connection is closed after `hold_s`, and at once when the session is over."""
    route = StubRoute(None)
    async with listening(route, SocketLimits(hold_s=0.05)) as (_, port, _tally):
        reader, _writer = await ask(port, b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()
    async with listening(route) as (socket, port, _tally):
        reader, _writer = await ask(port, b"x")
        while not socket.is_waiting:
            await asyncio.sleep(0.01)
        route.end()
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_the_client_leaves(proxies: Proxies) -> None:
    """A client that goes away is gone for the proxy too, which then stops its engine."""

    async def until_gone(proxy: StubProxy, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await read_request(reader)
        proxy.arrived.set()
        try:
            await reader.read()
        finally:
            proxy.go_on.set()

    proxy, upstream = await proxies.start(b"one:", until_gone)
    async with listening(StubRoute(upstream)) as (_, port, _tally):
        _, writer = await ask(port, b"x")
        await proxy.arrived.wait()
        writer.transport.abort()
        await proxy.go_on.wait()


async def test_half_closed_clients_get_their_answer(proxies: Proxies) -> None:
    """A client that says that it will send no more still reads its answer to the end."""

    async def after_eof(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.requests.append(await read_request(reader))
        assert await reader.read() == b""
        writer.write(answer(b"late"))
        await writer.drain()

    _, upstream = await proxies.start(b"one:", after_eof)
    async with listening(StubRoute(upstream)) as (_, port, tally):
        reader, writer = await ask(port, b"x")
        writer.write_eof()
        assert await read_answer(reader) == b"late"
        assert await reader.read() == b""
        assert tally.cut == 0
        await closes(writer)


async def test_a_client_that_has_everything_is_not_cut(proxies: Proxies) -> None:
    """A client that left after its answer missed nothing, though its frozen proxy never closed the connection and is given up."""

    async def answers_once(proxy: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await read_request(reader)))
        await proxy.go_on.wait()

    _, upstream = await proxies.start(b"one:", answers_once)
    async with listening(StubRoute(upstream)) as (socket, port, tally):
        reader, writer = await ask(port, b"hello")
        assert await read_answer(reader) == b"hello"
        writer.write_eof()
        (connection,) = socket._connections
        while not connection._has_client_ended:
            await asyncio.sleep(0.01)
        socket.leave(upstream)
        assert await reader.read() == b""
        assert (tally.cut, tally.is_last_cut) == (0, False)
        await closes(writer)


async def test_tunnels_carry_bytes_both_ways_and_close_by_halves(proxies: Proxies) -> None:
    """After an upgrade anything goes, in both directions, until each side has ended its own."""

    async def upgrading(_: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        writer.write((await reader.readexactly(4))[::-1])
        writer.write_eof()
        assert await reader.read() == b"the rest"

    _, upstream = await proxies.start(b"one:", upgrading)
    async with listening(StubRoute(upstream)) as (_, port, _tally):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x01\x02\x03")
        assert await reader.read() == b"\x03\x02\x01\x00"
        writer.write(b"the rest")
        writer.write_eof()
        await closes(writer)


async def test_slow_clients_slow_their_proxy_down(proxies: Proxies) -> None:
    """What a client doesn't take waits at the proxy, not in our memory."""
    sent = 0

    async def endless(_: StubProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            sent += 65_536
            await writer.drain()

    _, upstream = await proxies.start(b"one:", endless)
    async with listening(StubRoute(upstream), SocketLimits(buffer_bytes=65_536)) as (_, port, _tally):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(request(b"x"))
        await reader.readexactly(1000)
        before = -1
        while before != sent:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 32 << 20  # the kernel's buffers and ours, far from endless
        await reader.readexactly(sent // 2)
        while sent == before:
            await asyncio.sleep(0.01)
        writer.transport.abort()


async def test_a_thousand_connections(proxies: Proxies) -> None:
    """A thousand clients at once are all served; at the close nothing of them is left."""
    proxy, upstream = await proxies.start(b"one:", echo)
    async with listening(StubRoute(upstream)) as (socket, port, tally):

        async def one(number: int) -> asyncio.StreamWriter:
            reader, writer = await ask(port, b"%d" % number)
            assert await read_answer(reader) == b"one:%d" % number
            return writer

        writers = []
        for start in range(0, 1000, 100):
            writers += await asyncio.gather(*(one(n) for n in range(start, start + 100)))
        assert tally.connections == proxy.connections == 1000
        await socket.close()
        for writer in writers:
            writer.transport.abort()
        while proxy.connections:
            await asyncio.sleep(0.01)
