"""A connection's two transports: the side that faces the proxy, and how either is ended at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, Protocol, cast

from stage_workers.model_socket.route import Upstream

_CONNECT_S: Final = 5.0
"""To a machine of our own network; a proxy that takes longer is looked at."""
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: the close is a reset."""


class Relaying(Protocol):
    """What becomes of what the proxy does."""

    def from_proxy(self, data: bytes) -> None:
        """Bytes of the answer."""

    def proxy_paused(self) -> None:
        """The proxy takes nothing at the moment."""

    def proxy_resumed(self) -> None:
        """It does again."""

    def proxy_half_closed(self) -> bool:
        """The proxy sends no more; whether it may still read."""

    def proxy_ended(self) -> None:
        """The proxy closed its side."""

    def proxy_failed(self) -> None:
        """The proxy's connection broke."""


async def dial(connection: Relaying, upstream: Upstream, buffer_bytes: int) -> asyncio.Transport | None:
    """Connects to a proxy; None when that can't be done in time. The transport's protocol is a `ProxySide`."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: ProxySide(connection, buffer_bytes), upstream.host, upstream.port
            )
    except (OSError, TimeoutError):
        return None
    return transport


def drop(proxy: asyncio.Transport) -> None:
    """Leaves a proxy: nothing of it reaches the connection any more."""
    cast("ProxySide", proxy.get_protocol()).connection = None
    proxy.abort()


def tear_off(client: asyncio.Transport) -> None:
    """Ends a client's side so that it takes no part of an answer for the whole."""
    # Without this the kernel would close in order, and an answer without a length would look whole.
    client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.abort()


class ProxySide(asyncio.Protocol):
    """Hands what the proxy does to the connection, for as long as `connection` is set: it lets go of a proxy that it leaves."""

    def __init__(self, connection: Relaying, buffer_bytes: int) -> None:
        self.connection: Relaying | None = connection
        self._buffer_bytes = buffer_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        cast("asyncio.Transport", transport).set_write_buffer_limits(self._buffer_bytes)

    def data_received(self, data: bytes) -> None:
        """From the proxy."""
        if self.connection is not None:
            self.connection.from_proxy(data)

    def eof_received(self) -> bool:
        """The proxy is done."""
        if self.connection is None or self.connection.proxy_half_closed():
            return self.connection is not None
        self.connection.proxy_ended()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The proxy is gone."""
        if self.connection is not None and exc is not None:
            self.connection.proxy_failed()
        elif self.connection is not None:
            self.connection.proxy_ended()

    def pause_writing(self) -> None:
        """Its buffer is full."""
        if self.connection is not None:
            self.connection.proxy_paused()

    def resume_writing(self) -> None:
        """There is room again."""
        if self.connection is not None:
            self.connection.proxy_resumed()
