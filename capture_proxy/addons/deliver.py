"""Deliver: whether the end of each call reached the client's transport is a fact of its own."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from mitmproxy import connection, http

from capture_proxy.call import Call
from capture_proxy.exchange import exchange_of
from capture_proxy.recorder import Recorder
from capture_proxy.tap import Tap

log = structlog.get_logger(__name__)


class Deliver:
    """Appends one delivery fact per started call, and ends the calls of clients that left."""

    def __init__(self, recorder: Recorder, tap: Tap, *, on_settled: Callable[[http.HTTPFlow], None]) -> None:
        self._recorder = recorder
        self._on_settled = on_settled
        self._tap = tap
        self._by_client: dict[str, set[Call]] = {}

    def request(self, flow: http.HTTPFlow) -> None:
        """The last request hook: from here on the flow is the tap's, and what its body was has been recorded."""
        self._on_settled(flow)
        call = exchange_of(flow).call
        if call is not None:
            self._by_client.setdefault(flow.client_conn.id, set()).add(call)

    def response(self, flow: http.HTTPFlow) -> None:
        """The response is complete and, if it was a stream, already sent."""
        call = exchange_of(flow).call
        if call is not None:
            self._settle(flow.client_conn.id, call, "disconnected")

    def error(self, flow: http.HTTPFlow) -> None:
        """The client left, or the connection to the tap broke."""
        call = exchange_of(flow).call
        if call is not None:
            self._tap.abandon(call, "client_left")
            self._settle(flow.client_conn.id, call, "client_left")

    def client_disconnected(self, client: connection.Client) -> None:
        """The client's connection is gone: whatever no other hook told us of it ends here."""
        for call in list(self._by_client.get(client.id, ())):
            self._tap.abandon(call, "client_left")
            self._settle(client.id, call, "client_left")

    def _settle(self, client_id: str, call: Call, reason: str) -> None:
        why = "" if call.is_delivered else "withheld" if call.is_withheld else reason
        self._recorder.deliver(call, is_delivered=call.is_delivered, reason=why)
        self._tap.undelivered.put(call)
        calls = self._by_client.get(client_id)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._by_client[client_id]
