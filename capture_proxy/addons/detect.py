"""Detect: which dialect and operation a request is for; probes are answered here."""

from __future__ import annotations

import asyncio

from mitmproxy import http

from capture_proxy import encodings
from capture_proxy.dialects import DIALECTS, detect
from capture_proxy.dialects.detect import likely_dialect
from capture_proxy.exchange import Exchange, RefusedError, RequestStep, answer, bare_path, exchange_of, refuse
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
            exchange.dialect = DIALECTS[likely_dialect(request.path, request.headers)]
            path = bare_path(request.path)
            error = ProxyError("not_found", f"{request.method} {path} isn't an endpoint of this proxy")
            raise RefusedError(error, "unknown_endpoint")
        exchange.route, exchange.dialect = route, DIALECTS[route.dialect]
        if route.operation == "probe":
            answer(flow, 200, {"content-type": "text/plain"}, b"")
            return
        exchange.body = await self._body(request)

    def error(self, flow: http.HTTPFlow) -> None:
        """The hook: mitmproxy itself refused a body far above the limit, with its own 413; here it is counted."""
        if flow.error is not None and flow.error.msg.startswith("Request body exceeds"):
            error = ProxyError("too_large", "the request body is far above the limit")
            refuse(self.recorder, flow, exchange_of(flow), RefusedError(error, "too_large"))

    async def _body(self, request: http.Request) -> bytes:
        """The body without its content encoding (gzip, zstd, …)."""
        body, limit = request.raw_content or b"", self._max_request_bytes
        if len(body) > limit:
            raise ProxyError("too_large", f"the request body has {len(body)} bytes, more than the limit of {limit}")
        encoding = request.headers.get("content-encoding", "")
        if not encoding:
            return body
        try:
            return await asyncio.to_thread(encodings.decode, body, encoding, limit)
        except ValueError as exc:
            raise ProxyError(
                "bad_request", f"the request body doesn't decode as its content-encoding says: {exc}"
            ) from exc
        except encodings.TooLongError as exc:
            raise ProxyError("too_large", f"the request body has {exc}") from exc
