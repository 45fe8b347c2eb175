"""Authorise: a secret opens its own lease, while that is open, and nothing else."""

from __future__ import annotations

from mitmproxy import http

from capture_proxy.exchange import Exchange, RefusedError, RequestStep
from capture_proxy.leases import Denial
from capture_proxy.reply import ProxyError
from schemas import ids


class Authorise(RequestStep):
    """Sets `lease`, or answers 401 (unknown) or 409 (no longer open)."""

    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:  # noqa: ARG002 - the steps share one shape
        """Looks the secret up."""
        route = exchange.route
        assert route is not None
        if not route.secret:
            error = ProxyError(
                "unauthorized", "no API key: send the session's secret as the API key, or as /s/<secret>/ in the path"
            )
            raise RefusedError(error, "no_secret")
        found = self.recorder.authorise(ids.secret_hash(route.secret))
        if not isinstance(found, Denial):
            exchange.lease = found
            return
        if found.reason == "unknown_secret":
            error = ProxyError("unauthorized", "this API key opens no session here")
        elif found.reason == "not_open_yet":
            error = ProxyError(
                "engine_unavailable", "this session's lease is being opened: try again", status=503, retry_after_s=1.0
            )
        else:
            error = ProxyError("lease_ended", "this session's lease has ended: it takes no further calls")
        raise RefusedError(error, found.reason, session_id=found.session_id)
