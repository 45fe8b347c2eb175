"""The baseline of the proxy: mitmproxy as a library in reverse mode, streaming, with none of our addons."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

from mitmproxy import http, options
from mitmproxy.addons import core, disable_h2c, next_layer, proxyserver, tlsconfig
from mitmproxy.master import Master

from tests.bench.processes import raise_file_limit, say_ready


class Streaming:
    """The least that a proxy of streams needs: pass chunks on as they come. Says where it listens once it does."""

    def __init__(self, servers: proxyserver.Proxyserver, ready: Path) -> None:
        self._servers = servers
        self._ready = ready

    def running(self) -> None:
        """Mitmproxy's hook: the servers are up."""
        (address,) = [address for server in self._servers.servers for address in server.listen_addrs][:1]
        say_ready(self._ready, {"url": f"http://127.0.0.1:{address[1]}"})

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Mitmproxy's hook: the answer's head is there."""
        assert flow.response is not None
        flow.response.stream = True


async def serve(upstream: str, ready: Path) -> None:
    """Proxy until cancelled."""
    logging.getLogger("mitmproxy").setLevel(logging.WARNING)
    master = Master(options.Options(mode=[f"reverse:{upstream}"], listen_host="127.0.0.1", listen_port=0))
    servers = proxyserver.Proxyserver()
    master.addons.add(
        core.Core(),
        servers,
        next_layer.NextLayer(),
        tlsconfig.TlsConfig(),
        disable_h2c.DisableH2C(),
        Streaming(servers, ready),
    )
    master.options.update(http2=False, websocket=False, rawtcp=False)
    await master.run()


def main() -> None:
    """Run one proxy until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--upstream", required=True)
    arguments = parser.parse_args()
    raise_file_limit()
    asyncio.run(serve(arguments.upstream, arguments.ready))


if __name__ == "__main__":
    main()
