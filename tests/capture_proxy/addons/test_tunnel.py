"""CONNECT: one tunnel per connection, to hosts that are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy import connection, http
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import tflow

from capture_proxy.addons.tunnel import Tunnel
from capture_proxy.leases import Denial
from capture_proxy.vendors import VENDORS, HostList


class Counting:
    """The recorder's part that a tunnel needs."""

    def __init__(self) -> None:
        self.rejected: list[str] = []
        self.book = SimpleNamespace(is_known=lambda _secret: False)

    def reject(self, **facts: Any) -> None:
        self.rejected.append(facts["reason"])

    def count(self, what: str) -> None:
        del what

    def authorise(self, secret_hash: str) -> Denial | None:
        del secret_hash
        return None


@pytest.fixture
def recorder() -> Counting:
    return Counting()


@pytest.fixture
def tunnel(recorder: Counting) -> Tunnel:
    hosts = HostList.of(VENDORS, ["mirror.example"])
    return Tunnel(recorder, SimpleNamespace(host="127.0.0.1", port=9), hosts)  # type: ignore[arg-type]


def connect(host: str, port: int, client: connection.Client | None = None) -> http.HTTPFlow:
    flow = tflow.tflow(req=http.Request.make("CONNECT", f"https://{host}:{port}/"))
    flow.request.headers["proxy-authorization"] = "Bearer secret"
    if client is not None:
        flow.client_conn = client
    flow.client_conn.proxy_mode = ProxyMode.parse("regular")
    return flow


def test_a_tunnel_inside_a_tunnel_is_refused(tunnel: Tunnel, recorder: Counting) -> None:
    """It would change what the outer one is known to be for, also where several share an HTTP/2 connection."""
    outer = connect("api.openai.com", 443)
    tunnel.http_connect(outer)
    assert outer.response is None
    inner = connect("mirror.example", 443, outer.client_conn)
    tunnel.http_connect(inner)
    assert inner.response is not None
    assert inner.response.status_code == 405
    assert recorder.rejected == ["nested_tunnel"]
    assert tunnel._opened[outer.client_conn].address == ("api.openai.com", 443)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "mirror.example.evil", "api.openai.com.evil"]
)
def test_no_other_host_is_reached(tunnel: Tunnel, recorder: Counting, host: str) -> None:
    """Neither this machine's own listeners nor what only looks like a known host."""
    flow = connect(host, 443)
    tunnel.http_connect(flow)
    assert flow.response is not None
    assert flow.response.status_code == 403
    assert recorder.rejected == ["unknown_host"]


def test_a_mirror_is_let_through_on_its_own_port_alone(tunnel: Tunnel) -> None:
    """Another port of the same host is another service."""
    right, wrong = connect("mirror.example", 443), connect("mirror.example", 22)
    tunnel.http_connect(right)
    tunnel.http_connect(wrong)
    assert right.response is None
    assert wrong.response is not None
