"""Forward: the call gets its number, CallStarted goes to the spool, and the flow is rewritten to the tap."""

from __future__ import annotations

from mitmproxy import http

from capture_proxy.call import Call, Prompt
from capture_proxy.client_info import client_of
from capture_proxy.exchange import Exchange, RefusedError, RequestStep
from capture_proxy.leases import Lease
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ChatRequest, ProxyError
from capture_proxy.spool import SpoolRefusalError
from capture_proxy.tap import CALL_HEADER, PATH, TOKEN_HEADER, Tap


class Forward(RequestStep):
    """Sets `call`. The last step before the upstream: a flow that doesn't come through here never gets the tap's token."""

    def __init__(self, recorder: Recorder, tap: Tap) -> None:
        super().__init__(recorder)
        self._tap = tap

    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Begins the call, or sends an answer again that a marked retry asks for; refuses with 503 what couldn't be recorded."""
        lease, request, prompt = exchange.lease, exchange.request, exchange.prompt
        assert lease is not None
        assert request is not None
        assert prompt is not None
        client = client_of(dict(flow.request.headers), exchange.body, self.recorder.book.is_known)
        call = self._tap.undelivered.take(lease, request, exchange.body) if client.get("retry") else None
        if call is not None:
            prompt.release()
            self.recorder.count("repeated")
            self._tap.repeat(call)
        else:
            call = self._begin(lease, request, prompt, exchange)
            self._tap.expect(call)
        if client:
            call.notes.setdefault("client", client)
        exchange.call, exchange.body = call, b""  # its digest is taken: the flow lives as long as the call
        if exchange.is_forward:
            self.recorder.count("forward_calls")
        flow.request.scheme, flow.request.host, flow.request.port = "http", self._tap.host, self._tap.port
        flow.request.method, flow.request.path = "POST", PATH
        is_last = "close" in flow.request.headers.get("connection", "").lower()
        flow.request.headers.clear()
        if is_last:  # mitmproxy reads it here again when it decides whether the client's connection stays
            flow.request.headers["connection"] = "close"
        flow.request.headers["host"] = f"{self._tap.host}:{self._tap.port}"
        flow.request.headers[TOKEN_HEADER] = self._tap.token
        flow.request.headers[CALL_HEADER] = call.completion_id
        flow.request.raw_content = b""
        flow.request.headers["content-length"] = "0"

    def _begin(self, lease: Lease, request: ChatRequest, prompt: Prompt, exchange: Exchange) -> Call:
        try:
            return self.recorder.begin(lease, request, prompt, exchange.body, arrived_s=exchange.arrived_s)
        except SpoolRefusalError as exc:
            error = ProxyError("engine_unavailable", f"the call can't be recorded, so it isn't made: {exc}")
            raise RefusedError(error, "no_room") from exc
