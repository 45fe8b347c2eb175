"""Errors in Anthropic's shape."""

from __future__ import annotations

import orjson

from capture_proxy.dialects.errors import error_headers, stream_text
from capture_proxy.reply import ErrorKind, Json, ProxyError

_TYPE: dict[ErrorKind, str] = {
    "unauthorized": "authentication_error",
    "lease_ended": "invalid_request_error",
    "bad_request": "invalid_request_error",
    "context_overflow": "invalid_request_error",
    "overloaded": "rate_limit_error",
    "engine_unavailable": "overloaded_error",
    "engine_error": "api_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "internal": "api_error",
}

_OVERLOADED_STATUS = 529
"""The vendor's own status for an overloaded service, where others say 503."""

_TOO_LONG = "prompt is too long"
"""Clients recognise a full context by these words: they compact, or stop without retrying."""


def error_value(error: ProxyError, *, is_in_stream: bool = False) -> dict[str, Json]:
    """The error object of a body or of a stream."""
    message = stream_text(error) if is_in_stream else error.message
    if error.kind == "context_overflow":
        message = _too_long(error)
    return {"type": "error", "error": {"type": _TYPE[error.kind], "message": message}}


def _too_long(error: ProxyError) -> str:
    if error.context is None:
        return f"{_TOO_LONG}: {error.message}"
    tokens, most = error.context
    return f"{_TOO_LONG}: {tokens} tokens > {most} maximum"


def encode_error(error: ProxyError) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body)."""
    status = _OVERLOADED_STATUS if error.kind == "engine_unavailable" else error.status
    return status, error_headers(error), orjson.dumps(error_value(error))
