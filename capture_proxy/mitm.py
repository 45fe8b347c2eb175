"""mitmproxy as a library: one Master per process, in our own event loop, with only the parts that we need."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any

from mitmproxy import options
from mitmproxy.addons import core, disable_h2c, next_layer, proxyserver, tlsconfig
from mitmproxy.master import Master
from mitmproxy.proxy import server

# mitmproxy logs every connection at INFO; what matters of that is in our own log.
_LEVEL = logging.WARNING


class Listener:
    """The data listener: a reverse proxy whose upstream is the tap."""

    def __init__(self, addons: Sequence[Any]) -> None:
        self._addons = addons
        self._master: Any = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(
        self, *, host: str, port: int, upstream_port: int, body_limit_bytes: int, idle_s: float, timeout_s: float = 10.0
    ) -> None:
        """Listens; raises OSError when the port can't be had. Connections that are silent for `idle_s` are cut."""
        # Not an option of mitmproxy's: its 10 minutes would cut a whole answer that the engine takes longer for.
        server.TCP_TIMEOUT = max(server.TCP_TIMEOUT, math.ceil(idle_s))
        logging.getLogger("mitmproxy").setLevel(_LEVEL)
        opts = options.Options(
            mode=[f"reverse:http://127.0.0.1:{upstream_port}"],
            listen_host=host,
            listen_port=port,
        )
        # mitmproxy's own functions are partly untyped: Any keeps that inside this module.
        master: Any = Master(opts)
        self._master = master
        servers: Any = _make(proxyserver.Proxyserver)
        is_running = asyncio.Event()
        master.addons.add(
            core.Core(),
            servers,
            next_layer.NextLayer(),
            tlsconfig.TlsConfig(),
            disable_h2c.DisableH2C(),
            _Running(is_running),
            *self._addons,
        )
        # Our own limit, checked first, answers in the dialect's shape; this one bounds memory.
        master.options.update(
            body_size_limit=str(body_limit_bytes),
            # The client's own host name stays in the request, for the rejection's record.
            keep_host_header=True,
            http2=False,
            websocket=False,
            rawtcp=False,
        )
        self._task = asyncio.create_task(master.run(), name="mitmproxy")
        async with asyncio.timeout(timeout_s):
            ready = asyncio.create_task(is_running.wait())
            await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        addresses = [address for server in servers.servers for address in server.listen_addrs]
        if not addresses:
            reasons = "; ".join(str(server.last_exception) for server in servers.servers)
            await self.stop()
            raise OSError(f"the proxy can't listen on {host}:{port}: {reasons or 'mitmproxy stopped'}")
        self.port = int(addresses[0][1])

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Stops listening and cuts what is still connected."""
        if self._master is None or self._task is None:
            return
        master, task = self._master, self._task
        self._master = self._task = None
        servers = master.addons.get("proxyserver")
        try:
            async with asyncio.timeout(timeout_s):
                await servers.servers.update([])  # no new connections
                await _cut_connections(servers)
                master.shutdown()
                await task
        except TimeoutError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _cut_connections(servers: Any) -> None:
    """Ends what is still connected; mitmproxy itself would leave its handlers to be destroyed with the loop."""
    for handler in list(servers.connections.values()):
        for io in list(handler.transports.values()):
            if io.handler is not None:
                io.handler.cancel("the proxy stops")
    while servers.connections:  # noqa: ASYNC110 - it has no event for this
        await asyncio.sleep(0.01)


def _make(untyped: Any) -> Any:
    return untyped()


class _Running:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def running(self) -> None:
        """The hook: the servers are up, or failed to come up."""
        self._event.set()
