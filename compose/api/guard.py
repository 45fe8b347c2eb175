"""What stands before every route: the key, the rate, and the size of bodies."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from compose.api.problems import ApiError, answer
from compose.api.settings import ApiSettings

_log = structlog.get_logger(__name__)

OPEN_PATHS: Final = frozenset({"/", "/docs", "/openapi.json", "/api/health", "/health"})
"""Answered without a key: they say nothing of any task."""

CALLERS_KEPT: Final = 10_000
"""Addresses whose rate is remembered; the one that was quiet for longest is forgotten first."""


class Rates:
    """A token bucket per caller."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str, now_s: float) -> float:
        """Seconds until the caller may ask; 0.0 when it may now, which is then counted."""
        tokens, at = self._buckets.pop(caller, (float(self._burst), now_s))
        tokens = min(float(self._burst), tokens + (now_s - at) * self._per_s)
        is_allowed = tokens >= 1
        self._buckets[caller] = (tokens - 1 if is_allowed else tokens, now_s)
        if len(self._buckets) > CALLERS_KEPT:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - tokens) / self._per_s


class Guard:
    """ASGI middleware: refuses with 429, 401, 413 or 408 before a route sees the request; reads the body whole, bounded."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings
        self._key = settings.key.get_secret_value().encode()
        self._rates = Rates(settings.rate_per_s, settings.rate_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._check(scope, headers)
            body = await self._body(headers, receive)
        except ApiError as refused:
            await answer(refused)(scope, receive, send)
            return
        is_given = False

        async def replay() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        caller = (scope.get("client") or ("",))[0]
        if (wait_s := self._rates.wait_s(caller, time.monotonic())) > 0:
            limit = f"{self._settings.rate_per_s:g} a second"
            raise ApiError(
                429, f"{caller} asks more often than {limit}", hint="slow down", retry_after_s=1 + int(wait_s)
            )
        if scope["path"] in OPEN_PATHS:
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            _log.warning("key.refused", caller=caller, path=scope["path"], is_given=bool(key))
            why = "this isn't the API's key" if key else "the request carries no key"
            raise ApiError(401, why, hint="send `Authorization: Bearer KEY`; `polynya api key` prints the key")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limit = self._settings.max_body_bytes
        too_large = ApiError(
            413,
            f"the body is larger than {limit} bytes",
            hint="submit fewer tasks at a time, or raise POLYNYA_API_MAX_BODY_BYTES",
        )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_within_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return bytes(body)  # the caller left; whoever reads on learns so
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as late:
            raise ApiError(408, f"the body wasn't whole after {self._settings.body_within_s:g} s") from late
