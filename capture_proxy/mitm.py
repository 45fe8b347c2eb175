"""mitmproxy as a library: one Master per process, in our own event loop, with only the parts that we need."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mitmproxy import connection, options
from mitmproxy.addons import core, disable_h2c, next_layer, proxyserver, tlsconfig
from mitmproxy.master import Master
from mitmproxy.proxy import server

# mitmproxy logs every connection at INFO; what matters of that is in our own log.
_LEVEL = logging.WARNING

# Of one client: HTTP/2 brings all calls of a harness on one connection, and each needs its own to the tap. mitmproxy's limit is 5.
_CALLS_PER_CONNECTION: Final = 1000


class Listener:
    """The data listeners: a reverse proxy whose upstream is the tap and, where it is asked for, a forward proxy beside it."""

    def __init__(self) -> None:
        self._master: Any = None
        self._servers: Any = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0
        self.forward_port = 0

    async def start(
        self,
        addons: Sequence[Any],
        *,
        host: str,
        port: int,
        upstream_port: int,
        idle_s: float,
        forward: tuple[str, int] | None = None,
        authority_dir: Path | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Listens, with `addons` in their order; raises OSError when a port can't be had. Connections that are silent for `idle_s` are cut.

        `forward` is the forward listener's host and port; `authority_dir` then holds the authority that signs for the vendors' hosts.
        """
        # Not an option of mitmproxy's: its 10 minutes would cut a whole answer that the engine takes longer for.
        server.TCP_TIMEOUT = max(server.TCP_TIMEOUT, math.ceil(idle_s))
        logging.getLogger("mitmproxy").setLevel(_LEVEL)
        modes = [f"reverse:http://127.0.0.1:{upstream_port}@{host}:{port}"]
        if forward is not None:
            modes.append(f"regular@{forward[0]}:{forward[1] or _free_port(forward[0])}")
        opts: Any = options.Options(mode=modes)
        if authority_dir is not None:
            opts.update(confdir=str(authority_dir))
        # mitmproxy's own functions are partly untyped: Any keeps that inside this module.
        master: Any = Master(opts)
        self._master = master
        servers: Any = _make(proxyserver.Proxyserver)
        self._servers = servers
        is_running = asyncio.Event()
        master.addons.add(
            core.Core(),
            servers,
            disable_h2c.DisableH2C(),
            _Running(is_running),
            self,
            *addons,
            next_layer.NextLayer(),  # takes what none of ours has taken before it
        )
        if forward is not None:
            master.addons.add(tlsconfig.TlsConfig())
            master.options.update(upstream_cert=False)  # the hosts' certificates are made up, without asking the hosts
        master.options.update(
            # The client's own host name stays in the request, for the rejection's record.
            keep_host_header=True,
            connection_strategy="lazy",  # no connection goes out before our own steps have seen the request
            http2=forward is not None,
            websocket=False,
            rawtcp=False,
        )
        self._task = asyncio.create_task(master.run(), name="mitmproxy")
        async with asyncio.timeout(timeout_s):
            ready = asyncio.create_task(is_running.wait())
            await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        ports = [instance.listen_addrs[0][1] for instance in servers.servers if instance.listen_addrs]
        if len(ports) < len(modes):
            reasons = "; ".join(str(instance.last_exception) for instance in servers.servers if instance.last_exception)
            await self.stop()
            raise OSError(f"the proxy can't listen on {' and '.join(modes)}: {reasons or 'mitmproxy stopped'}")
        self.port, self.forward_port = int(ports[0]), int(ports[1]) if forward is not None else 0

    def client_connected(self, client: connection.Client) -> None:
        """The hook: lets one connection have many calls at a time."""
        handler = self._servers.connections.get(client.id)
        if handler is not None:
            handler.max_conns = defaultdict(lambda: asyncio.Semaphore(_CALLS_PER_CONNECTION))

    def cut(self, client_id: str, reason: str) -> None:
        """Ends a client's connection."""
        handler = self._servers.connections.get(client_id) if self._servers is not None else None
        if handler is not None:
            _cut(handler, reason)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._servers.connections) if self._servers is not None else 0

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Stops listening and cuts what is still connected."""
        if self._master is None or self._task is None:
            return
        master, task = self._master, self._task
        self._master = self._task = None
        servers = self._servers
        try:
            async with asyncio.timeout(timeout_s):
                await servers.servers.update([])  # no new connections
                await _cut_connections(servers)
                master.shutdown()
                await task
        except TimeoutError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _cut(handler: Any, reason: str) -> None:
    for io in list(handler.transports.values()):
        if io.handler is not None:
            io.handler.cancel(reason)


async def _cut_connections(servers: Any) -> None:
    """Ends what is still connected; mitmproxy itself would leave its handlers to be destroyed with the loop."""
    for handler in list(servers.connections.values()):
        _cut(handler, "the proxy stops")
    while servers.connections:  # noqa: ASYNC110 - it has no event for this
        await asyncio.sleep(0.01)


def _free_port(host: str) -> int:
    """A port for the second listener: mitmproxy refuses two that are to be chosen freely on one host."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _make(untyped: Any) -> Any:
    return untyped()


class _Running:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def running(self) -> None:
        """The hook: the servers are up, or failed to come up."""
        self._event.set()
