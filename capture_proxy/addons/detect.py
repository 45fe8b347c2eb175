"""Detect: which dialect and operation a request is for; probes are answered here."""

from __future__ import annotations

from mitmproxy import http

from capture_proxy.dialects import DIALECTS, detect
from capture_proxy.exchange import Exchange, RefusedError, RequestStep, answer, bare_path
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ProxyError


class Detect(RequestStep):
    """Finds the route and reads the body."""

    def __init__(self, recorder: Recorder, *, max_request_bytes: int) -> None:
        super().__init__(recorder)
        self._max_request_bytes = max_request_bytes

    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Sets `route`, `dialect` and `body`."""
        request = flow.request
        route = detect(request.method, request.path, request.headers)
        if route is None:
            if any(name.lower() == "anthropic-version" for name in request.headers):
                exchange.dialect = DIALECTS["anthropic"]
            path = bare_path(request.path)
            error = ProxyError("not_found", f"{request.method} {path} isn't an endpoint of this proxy")
            raise RefusedError(error, "unknown_endpoint")
        exchange.route, exchange.dialect = route, DIALECTS[route.dialect]
        if route.operation == "probe":
            answer(flow, 200, {"content-type": "text/plain"}, b"")
            return
        exchange.body = self._body(request)

    def _body(self, request: http.Request) -> bytes:
        """The body without its content encoding (gzip, zstd, …)."""
        size = len(request.raw_content or b"")
        if size <= self._max_request_bytes:
            try:
                body = request.content or b""
            except ValueError as exc:
                raise ProxyError(
                    "bad_request", f"the request body doesn't decode as its content-encoding says: {exc}"
                ) from exc
            size = len(body)
            if size <= self._max_request_bytes:
                return body
        raise ProxyError(
            "too_large", f"the request body has {size} bytes, more than the limit of {self._max_request_bytes}"
        )
