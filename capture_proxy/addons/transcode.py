"""Transcode: the tap's events become the dialect's bytes, as they come (a stream) or at the end (a whole answer)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import structlog
from mitmproxy import http
from mitmproxy.connection import ConnectionState

from capture_proxy.call import Call
from capture_proxy.dialects import StreamEncoder
from capture_proxy.exchange import Exchange, answer, answer_error, exchange_of
from capture_proxy.reply import Failed, Finished, KeepAlive, LineReader, ProxyError, ReplyEvent
from capture_proxy.tap import Tap

log = structlog.get_logger(__name__)


def can_send(flow: http.HTTPFlow) -> bool:
    """Whether no disconnect of the client has been seen."""
    return flow.error is None and bool(flow.client_conn.state & ConnectionState.CAN_WRITE)


class StreamTranscoder:
    """mitmproxy's stream callable: arbitrary pieces of the tap's lines in, the dialect's events out.

    What is empty must not be returned as a chunk: an empty chunk is how HTTP/1.1 ends a body, and the client would leave.
    """

    def __init__(
        self,
        flow: http.HTTPFlow,
        call: Call,
        encoder: StreamEncoder,
        *,
        keepalive_s: float = 0.0,
        on_failure: Callable[[Call, str], None] = lambda _call, _reason: None,
    ) -> None:
        self._flow = flow
        self._keepalive_s = keepalive_s
        self._on_failure = on_failure
        self._shown_s = time.monotonic()
        self._call = call
        self._encoder = encoder
        self._reader = LineReader()
        self._is_over = False

    def __call__(self, data: bytes) -> list[bytes]:
        """What to send for a piece of the tap's body, as one chunk or none; b'' is the body's end."""
        out = b"".join(self._transcode(data))
        if out:
            self._shown_s = time.monotonic()
        return [out] if out else []

    def _transcode(self, data: bytes) -> Iterator[bytes]:
        if self._is_over:
            return
        try:
            if not data:
                self._call.is_withheld = True
                yield self._encode(Failed(ProxyError("engine_error", "the reply broke off")))
                return
            for event in self._reader.feed(data):
                yield self._encode(event)
        except Exception:  # a stream's boundary: an exception here would only cut the connection
            log.exception("transcode.failed", completion_id=self._call.completion_id)
            self._call.is_withheld = True
            yield self._last_words()
            self._on_failure(self._call, "transcode_failed")

    def _last_words(self) -> bytes:
        """The dialect's error event for a reply that can't be shown any further."""
        try:
            return self._encode(
                Failed(ProxyError("internal", "the proxy failed on this reply; its log has the details"))
            )
        except Exception:  # the encoder itself is broken: the stream ends here, without a word
            log.exception("transcode.speechless", completion_id=self._call.completion_id)
            self._is_over = True
            return b""

    def _encode(self, event: ReplyEvent) -> bytes:
        if self._is_over or (isinstance(event, KeepAlive) and self._has_just_shown()):
            return b""
        out = self._encoder.encode(event)
        if isinstance(event, Finished | Failed):
            self._is_over = True
            self._call.is_terminal_sent = can_send(self._flow)
        return out

    def _has_just_shown(self) -> bool:
        """Whether the client saw something within half of the time that it may be left without: a tick comes that often."""
        return time.monotonic() - self._shown_s < self._keepalive_s / 2


def _name(flow: http.HTTPFlow, exchange: Exchange, call: Call) -> None:
    """Gives an answer its id, where the dialect's answers have one."""
    if (header := exchange.dialect.request_id_header) and flow.response is not None:
        flow.response.headers[header] = f"req_{call.completion_id.replace('-', '')}"


class Transcode:
    """Turns what the tap answers into what the client expects; a reply that it can't show is given up."""

    def __init__(self, tap: Tap, *, keepalive_s: float) -> None:
        self._tap = tap
        self._keepalive_s = keepalive_s

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """A stream that began well is transcoded as it comes; everything else when it is whole."""
        exchange = exchange_of(flow)
        call, response = exchange.call, flow.response
        if call is None or response is None or response.status_code != 200 or not call.request.stream:
            return
        for name in list(response.headers):
            if name.lower() != "transfer-encoding":
                del response.headers[name]
        dialect = exchange.dialect
        headers_of = dialect.stream_headers_of
        response.headers.update(dict(headers_of(call.request) if headers_of else dialect.stream_headers))
        _name(flow, exchange, call)
        response.stream = StreamTranscoder(
            flow,
            call,
            dialect.stream_encoder(call.request),
            keepalive_s=self._keepalive_s,
            on_failure=self._tap.abandon,
        )

    def response(self, flow: http.HTTPFlow) -> None:
        """A whole answer, or an error from before the stream began."""
        exchange = exchange_of(flow)
        call, response = exchange.call, flow.response
        if call is None or response is None or response.stream:
            return
        try:
            self._whole(flow, exchange, call, response.raw_content or b"")
        except Exception:  # the response's boundary: fail closed, in the dialect's shape
            log.exception("transcode.failed", completion_id=call.completion_id)
            call.is_withheld = True
            answer_error(
                flow, exchange, ProxyError("internal", "the proxy failed on this reply; its log has the details")
            )
        _name(flow, exchange, call)
        call.is_terminal_sent = can_send(flow)

    def _whole(self, flow: http.HTTPFlow, exchange: Exchange, call: Call, lines: bytes) -> None:
        event = next(iter(LineReader().feed(lines)), None)
        if isinstance(event, Finished):
            answer(flow, 200, {"content-type": "application/json"}, exchange.dialect.encode_whole(event.reply))
        elif isinstance(event, Failed):
            answer_error(flow, exchange, event.error)
        else:
            call.is_withheld = True
            answer_error(flow, exchange, ProxyError("engine_error", "the reply broke off"))
