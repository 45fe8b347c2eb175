"""The model socket: the address of a session's model, which outlives the proxies behind it.

A harness' base URL can't change while it runs, so it names a listening socket of the worker's. Bytes go from there to the proxy where the
session's lease is open; when that one dies, connections are held, the lease is opened elsewhere, and requests without an answer go there.
"""

from __future__ import annotations

from stage_workers.model_socket.limits import SocketLimits, Tally
from stage_workers.model_socket.relay import Connection
from stage_workers.model_socket.route import Route, RouteOver, Upstream
from stage_workers.model_socket.socket import ModelSocket

__all__ = ["Connection", "ModelSocket", "Route", "RouteOver", "SocketLimits", "Tally", "Upstream"]
