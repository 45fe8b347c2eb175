"""A session's listening socket, and all connections that came to it."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from stage_workers.model_socket.exchange import Budget
from stage_workers.model_socket.limits import SocketLimits, Tally
from stage_workers.model_socket.relay import Connection
from stage_workers.model_socket.route import Route, Upstream
from stage_workers.runtimes.base import Listener

log = structlog.get_logger(__name__)

_BACKLOG: Final = 1024
_MOST_CONNECTIONS: Final = 4096
"""Of one session: a harness that leaks connections must not take the worker's last file."""


class ModelSocket:
    """Accepts at `listener` and relays to the route's proxy until it is closed. Relays to nothing else, and reads no credentials."""

    def __init__(self, listener: Listener, route: Route, limits: SocketLimits, budget: Budget, tally: Tally) -> None:
        self.address = listener.address
        self._listener = listener
        self._route = route
        self._limits = limits
        self._budget = budget
        self._tally = tally
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begins to accept."""
        self._server = await asyncio.get_running_loop().create_server(
            self._connection, sock=self._listener.sock, backlog=_BACKLOG
        )

    def _connection(self) -> asyncio.BaseProtocol:
        if len(self._connections) >= _MOST_CONNECTIONS:
            log.warning("model_socket.full", address=self.address, connections=len(self._connections))
            return _Refusal()
        self._tally.connections += 1
        connection = Connection(self._route, self._limits, self._budget, self._tally, on_end=self._connections.discard)
        self._connections.add(connection)
        return connection

    @property
    def is_waiting(self) -> bool:
        """Whether a client waits for an answer, or for more of one."""
        return any(connection.is_waiting for connection in self._connections)

    def leave(self, upstream: Upstream) -> None:
        """This proxy is dead: requests without an answer go to the next one, answers that had begun are cut."""
        for connection in list(self._connections):
            connection.leave(upstream)

    async def close(self) -> None:
        """Stops accepting and ends every connection."""
        if self._server is not None:
            self._server.close()
        self._listener.sock.close()
        for connection in list(self._connections):
            connection.abort()
        # The transports' last callbacks.
        await asyncio.sleep(0)


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
