"""The gate for request bodies: what is too large, or more than there is room for, is answered before it is read into memory.

mitmproxy has a limit of its own, but answers with its own page, whatever API the client speaks. So the method in which it checks
that limit is replaced here by one that asks our gate and sends the gate's answer; the rest of the body is read and thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from mitmproxy import http
from mitmproxy.net.http.http1 import expected_http_body_size
from mitmproxy.proxy.layers.http import DropStream, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import ResponseData, ResponseEndOfMessage, ResponseHeaders

Gate: TypeAlias = Callable[[http.HTTPFlow, int], http.Response | None]
"""(flow, bytes that the body has or announces) → None to go on, or the answer to send instead."""

_gates: list[Gate] = []


def set_gate(gate: Gate | None) -> None:
    """Asks `gate` about every request body from now on; None takes it away. One per process, as mitmproxy's Master is."""
    _gates[:] = [] if gate is None else [gate]


def _check_body_size(stream: Any, request: bool) -> Generator[Any, Any, bool]:
    """In place of `HttpStream.check_body_size`: yields commands, and returns whether the request was answered."""
    if not request or not _gates:
        return False
    size = len(stream.request_body_buf) or _announced_bytes(stream.flow)
    if size <= 0:
        return False
    response = _gates[0](stream.flow, size)
    if response is None:
        return False
    stream.flow.response = response
    stream.flow.live = False
    stream.request_body_buf.clear()
    # From here on whatever comes of this request is thrown away; the connection ends with it, since it says so.
    stream.client_state = stream.server_state = stream.state_errored
    yield SendHttp(ResponseHeaders(stream.stream_id, response, end_stream=False), stream.context.client)
    yield SendHttp(ResponseData(stream.stream_id, response.raw_content or b""), stream.context.client)
    yield DropStream(stream.stream_id)
    yield SendHttp(ResponseEndOfMessage(stream.stream_id), stream.context.client)
    return True


def _announced_bytes(flow: http.HTTPFlow) -> int:
    """What `Content-Length` says; 0 where it says nothing (chunked) or nonsense, which mitmproxy refuses by itself."""
    try:
        return expected_http_body_size(flow.request) or 0
    except ValueError:
        return 0


HttpStream.check_body_size = _check_body_size  # type: ignore[method-assign, assignment]
