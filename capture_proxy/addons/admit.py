"""Admit: whether there is room for a request, before it costs anything; and the end of those that never become whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from mitmproxy import http

from capture_proxy.dialects import DIALECTS, detect
from capture_proxy.exchange import Exchange, RefusedError, RequestStep, exchange_of, refuse
from capture_proxy.loop_lag import LoopLag
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ProxyError
from capture_proxy.tap import Tap

log = structlog.get_logger(__name__)

_LINGER_S: Final = 10.0
"""So long the rest of a refused body is read and thrown away: a connection cut at once may take the answer with it."""
_LEFT: Final = ("peer closed", "disconnect", "connection closed", "reset")


class Admit(RequestStep):
    """Bounds what one request may bring, what all of them may hold in memory, how many calls run, and how late the loop may be.

    `place` says of a request which API it is for, from its head alone; `cut` ends a client's connection.
    """

    def __init__(
        self,
        recorder: Recorder,
        tap: Tap,
        lag: LoopLag,
        *,
        place: Callable[[http.HTTPFlow, Exchange], None],
        cut: Callable[[str, str], None],
        max_request_bytes: int,
        max_bodies_bytes: int,
        max_calls: int,
        max_lag_s: float,
        read_s: float,
    ) -> None:
        super().__init__(recorder)
        self._tap = tap
        self._lag = lag
        self._place = place
        self._cut = cut
        self._max_request_bytes = max_request_bytes
        self._max_bodies_bytes = max_bodies_bytes
        self._max_calls = max_calls
        self._max_lag_s = max_lag_s
        self._read_s = read_s
        self._bodies: dict[str, int] = {}
        self._reading: dict[str, asyncio.TimerHandle] = {}
        self.bodies_bytes = 0
        """Bodies that are being read, or stand before their first step towards a call."""

    def gate(self, flow: http.HTTPFlow, size: int) -> http.Response | None:
        """Lets a body in, or gives the answer in its place. See `capture_proxy.body_gate`."""
        try:
            error = self._why_not(flow, size)
        except Exception:  # the gate's boundary: fail closed
            log.exception("request.gate_failed")
            error = ProxyError("internal", "the proxy failed on this request; its log has the details")
        if error is None:
            return None
        self._forget(flow)
        exchange = exchange_of(flow)
        self._place(flow, exchange)
        exchange.route = detect(flow.request.method, exchange.path or flow.request.path, flow.request.headers)
        if exchange.route is not None:
            exchange.dialect = DIALECTS[exchange.route.dialect]
        refuse(self.recorder, flow, exchange, RefusedError(error, error.kind), request_bytes=size)
        response = flow.response
        assert response is not None
        if not flow.request.is_http2:
            response.headers["connection"] = "close"
            asyncio.get_running_loop().call_later(_LINGER_S, self._cut, flow.client_conn.id, "the body is too large")
        return response

    def _why_not(self, flow: http.HTTPFlow, size: int) -> ProxyError | None:
        limit = self._max_request_bytes
        if size > limit:
            return ProxyError("too_large", f"the request body has more than the limit of {limit} bytes")
        held = self._bodies.get(flow.id, 0)
        if size <= held:
            return None
        if self.bodies_bytes + size - held > self._max_bodies_bytes:
            return ProxyError("overloaded", "the proxy holds too many large requests: try again")
        self._bodies[flow.id] = size
        self.bodies_bytes += size - held
        return None

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """The hook: from here on the body must come."""
        timer = asyncio.get_running_loop().call_later(self._read_s, self._give_up, flow)
        self._reading[flow.id] = timer

    async def request(self, flow: http.HTTPFlow) -> None:
        """The hook: the whole request is there."""
        if (timer := self._reading.pop(flow.id, None)) is not None:
            timer.cancel()
        await super().request(flow)

    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Refuses calls (429) before the proxy is too busy to serve those that it has."""
        self._place(flow, exchange)
        if flow.request.method != "POST":
            return
        if self._tap.in_flight >= self._max_calls:
            error = ProxyError("overloaded", f"the proxy has {self._tap.in_flight} calls in flight: try again")
        elif (late_s := self._lag.sustained_s) > self._max_lag_s:
            error = ProxyError("overloaded", f"the proxy is {late_s:.1f} s behind: try again")
        else:
            return
        route = detect(flow.request.method, exchange.path or flow.request.path, flow.request.headers)
        if route is not None:
            exchange.route, exchange.dialect = route, DIALECTS[route.dialect]
        raise RefusedError(error, "overloaded")

    def settled(self, flow: http.HTTPFlow) -> None:
        """All steps are done: the body isn't held any more."""
        self._forget(flow)

    def response(self, flow: http.HTTPFlow) -> None:
        """The hook."""
        self._forget(flow)

    def error(self, flow: http.HTTPFlow) -> None:
        """The hook: a request that never became whole, or that is no HTTP, is told like every other refusal."""
        self._forget(flow)
        exchange = exchange_of(flow)
        if exchange.call is not None or exchange.is_refused or flow.response is not None:
            return
        message = flow.error.msg if flow.error is not None else ""
        has_left = any(sign in message.lower() for sign in _LEFT)
        reason = "incomplete_request" if has_left else "invalid_http"
        self._place(flow, exchange)
        refuse(self.recorder, flow, exchange, RefusedError(ProxyError("bad_request", message), reason))
        flow.response = None

    def _give_up(self, flow: http.HTTPFlow) -> None:
        """The body doesn't come to its end."""
        exchange = exchange_of(flow)
        self._reading.pop(flow.id, None)
        if exchange.is_refused or exchange.call is not None:
            return
        self._place(flow, exchange)
        error = ProxyError("bad_request", f"the request body wasn't whole after {self._read_s:g} s", status=408)
        refuse(self.recorder, flow, exchange, RefusedError(error, "request_timeout"))
        # Over HTTP/2 the connection has other calls, which go on; this one's answer waits for its body's end.
        if not flow.request.is_http2:
            self._cut(flow.client_conn.id, "the request took too long")

    def _forget(self, flow: http.HTTPFlow) -> None:
        if (timer := self._reading.pop(flow.id, None)) is not None:
            timer.cancel()
        self.bodies_bytes -= self._bodies.pop(flow.id, 0)
