"""Detect: which dialect and operation a request is for; probes are answered here."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from mitmproxy import http

from capture_proxy import encodings
from capture_proxy.dialects import DIALECTS, detect
from capture_proxy.dialects.detect import hint_of, likely_dialect
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
        if request.headers.get("upgrade", "").lower() == "websocket":
            # A status that makes clients go on over HTTP at once; any other costs them several tries.
            message = "this proxy speaks HTTP, not websockets: send a POST"
            raise RefusedError(ProxyError("bad_request", message, status=426), "websocket")
        route = detect(request.method, exchange.path or request.path, request.headers)
        if route is None:
            if not exchange.is_forward:
                exchange.dialect = DIALECTS[likely_dialect(request.path, request.headers)]
            path = bare_path(request.path, self.recorder.book.is_known)
            error = ProxyError(
                "not_found", f"{request.method} {path} isn't an endpoint of this proxy{hint_of(request.path)}"
            )
            raise RefusedError(error, "unknown_endpoint")
        if exchange.is_forward:  # whatever key the harness has for its vendor, the session is the proxy credentials'
            route = replace(route, secret=exchange.secret)
        exchange.route, exchange.dialect = route, DIALECTS[route.dialect]
        if route.operation == "probe":
            answer(flow, 200, {"content-type": "text/plain"}, b"")
            return
        exchange.body = await self._body(request)

    async def _body(self, request: http.Request) -> bytes:
        """The body without its content encoding (gzip, zstd, …)."""
        body, limit = request.raw_content or b"", self._max_request_bytes
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
