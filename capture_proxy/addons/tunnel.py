"""Tunnel: the forward listener. A closed harness keeps its vendor's URL, and its calls go the same way as all others.

`HTTPS_PROXY=http://<secret>:x@host:port` brings the lease's secret. Known vendor hosts are decrypted with our own certificate
authority and answered here; listed mirrors are let through as they are; everything else is refused, and told.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import structlog
from mitmproxy import connection, http
from mitmproxy.proxy import layers, server_hooks
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.mode_specs import RegularMode

from capture_proxy.dialects import DIALECTS
from capture_proxy.exchange import Exchange, RefusedError, RequestStep, answer, exchange_of, refuse
from capture_proxy.leases import Denial
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ProxyError
from capture_proxy.tap import Tap
from capture_proxy.vendors import HostList, Vendor, our_path, side_call
from schemas import ids

log = structlog.get_logger(__name__)

_ASK_FOR_CREDENTIALS = {"proxy-authenticate": 'Basic realm="polynya"'}


@dataclass(frozen=True, slots=True)
class _Opened:
    """A tunnel that a client asked for with CONNECT, and got. Without a vendor it is let through."""

    address: tuple[str, int]
    secret: str
    vendor: Vendor | None


class Tunnel(RequestStep):
    """Sets `path`, `secret` and the vendor's dialect on requests of the forward listener; the others pass untouched."""

    def __init__(self, recorder: Recorder, tap: Tap, hosts: HostList) -> None:
        super().__init__(recorder)
        self._tap = tap
        self._hosts = hosts
        self._opened: WeakKeyDictionary[connection.Client, _Opened] = WeakKeyDictionary()

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """The hook: a client asks for a tunnel. Whatever isn't opened here leads nowhere, see `server_connect`."""
        if not _is_forward(flow.client_conn):
            _refuse(self.recorder, flow, 405, "not_a_forward_proxy", "this listener takes no CONNECT")
            return
        if flow.client_conn in self._opened:
            _refuse(self.recorder, flow, 405, "nested_tunnel", "there is no way on from inside a tunnel")
            return
        address = (flow.request.host, flow.request.port)
        secret = proxy_secret(flow.request)
        vendor = self._hosts.vendor(address[0])
        if vendor is None and not self._hosts.is_passed_through(*address):
            self._refuse_host(flow, secret)
        elif not secret:
            message = "the session's secret is missing: set HTTPS_PROXY=http://<secret>:x@host:port"
            _refuse(self.recorder, flow, 407, "no_secret", message, headers=_ASK_FOR_CREDENTIALS)
        elif vendor is None and isinstance(denial := self.recorder.authorise(ids.secret_hash(secret)), Denial):
            # A vendor's tunnel may be opened with any secret: its requests are refused inside, in the vendor's own words.
            _refuse(self.recorder, flow, 403, denial.reason, "this secret opens no session here", secret=secret)
        else:
            self._opened[flow.client_conn] = _Opened(address, secret, vendor)
            if vendor is None:
                self.recorder.count("passed_through")
                log.info("tunnel.passed_through", host=address[0])

    def next_layer(self, data: NextLayer) -> None:
        """The hook: what is inside a tunnel that is let through stays closed to us."""
        opened = self._opened.get(data.context.client)
        if opened is not None and opened.vendor is None and data.layer is None:
            data.layer = layers.TCPLayer(data.context, ignore=True)

    def server_connect(self, data: server_hooks.ServerConnectionHookData) -> None:
        """The hook: this process connects to its tap and to what is let through, whatever a bug may ask for."""
        opened = self._opened.get(data.client)
        address: Any = data.server.address
        if address == (self._tap.host, self._tap.port):
            return
        if opened is not None and opened.vendor is None and address == opened.address:
            return
        data.server.error = "the capture proxy connects to its own tap only"
        self.recorder.count("upstream_prevented")
        log.error("tunnel.upstream_prevented", address=str(address))

    def place(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Sets `is_forward`, `secret`, `path` and the vendor's dialect of a request that came to the forward listener."""
        if not _is_forward(flow.client_conn):
            return
        opened = self._opened.get(flow.client_conn)
        exchange.is_forward = True
        # Plain http brings its credentials with each request.
        exchange.secret = opened.secret if opened is not None else proxy_secret(flow.request)
        vendor = self._vendor(flow)
        if vendor is not None:
            exchange.dialect = DIALECTS.get(vendor.dialect, exchange.dialect)
            exchange.path = our_path(vendor, flow.request.path)

    def _vendor(self, flow: http.HTTPFlow) -> Vendor | None:
        opened = self._opened.get(flow.client_conn)
        return opened.vendor if opened is not None else self._hosts.vendor(flow.request.host)

    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Refuses what is for no vendor; answers side calls."""
        if not _is_forward(flow.client_conn):
            return
        vendor = self._vendor(flow)
        if vendor is None:
            self._refuse_host(flow, exchange.secret)
            return
        if not exchange.secret:
            message = "the session's secret is missing: set HTTPS_PROXY=http://<secret>:x@host:port"
            raise RefusedError(ProxyError("unauthorized", message, status=407), "no_secret")
        call = side_call(vendor, flow.request.path)
        if call is not None:
            self.recorder.count("side_calls")
            answer(flow, call.status, {"content-type": call.content_type}, call.body)

    def _refuse_host(self, flow: http.HTTPFlow, secret: str) -> None:
        host = flow.request.host
        message = f"this proxy stands for model APIs only; it doesn't connect to {host[:100]}"
        _refuse(self.recorder, flow, 403, self._hosts.why_refused(host), message, secret=secret)


def _is_forward(client: connection.Client) -> bool:
    return isinstance(client.proxy_mode, RegularMode)


def proxy_secret(request: http.Request) -> str:
    """The secret in a request's proxy credentials: the user name, or the password where the user name is empty."""
    scheme, _, value = str(request.headers.get("proxy-authorization", "")).strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return ""
    return user or password


def _refuse(
    recorder: Recorder,
    flow: http.HTTPFlow,
    status: int,
    reason: str,
    message: str,
    *,
    secret: str = "",
    headers: dict[str, str] | None = None,
) -> None:
    """Refuses a host or a tunnel; the rejection says which."""
    exchange = exchange_of(flow)
    exchange.is_forward, exchange.secret = True, secret
    error = ProxyError("unauthorized", message, status=status)
    refuse(recorder, flow, exchange, RefusedError(error, reason))
    assert flow.response is not None
    flow.response.headers.update({"connection": "close", **(headers or {})})
