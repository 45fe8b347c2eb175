"""Errors in OpenAI's shape."""

from __future__ import annotations

import orjson

from capture_proxy.dialects.errors import error_headers, stream_text
from capture_proxy.reply import ErrorKind, Json, ProxyError

_TYPE_AND_CODE: dict[ErrorKind, tuple[str, str | None]] = {
    "unauthorized": ("authentication_error", "invalid_api_key"),
    "lease_ended": ("invalid_request_error", "session_ended"),
    "bad_request": ("invalid_request_error", None),
    "context_overflow": ("invalid_request_error", "context_length_exceeded"),
    "overloaded": ("rate_limit_error", "rate_limit_exceeded"),
    "engine_unavailable": ("server_error", "service_unavailable"),
    "engine_error": ("server_error", "engine_error"),
    "not_found": ("invalid_request_error", "not_found"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "internal": ("server_error", "internal_error"),
}


def error_value(error: ProxyError, *, is_in_stream: bool = False) -> dict[str, Json]:
    """The error object of a body or of a stream."""
    kind, code = _TYPE_AND_CODE[error.kind]
    message = stream_text(error) if is_in_stream else error.message
    return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code or code}}


def encode_error(error: ProxyError) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body)."""
    return error.status, error_headers(error), orjson.dumps(error_value(error))
