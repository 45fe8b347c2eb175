"""Errors in Google's shape."""

from __future__ import annotations

import math

import orjson

from capture_proxy.dialects.errors import error_headers
from capture_proxy.reply import ErrorKind, Json, ProxyError

_STATUS: dict[ErrorKind, str] = {
    "unauthorized": "UNAUTHENTICATED",
    "lease_ended": "FAILED_PRECONDITION",
    "bad_request": "INVALID_ARGUMENT",
    "context_overflow": "INVALID_ARGUMENT",
    "overloaded": "RESOURCE_EXHAUSTED",
    "engine_unavailable": "UNAVAILABLE",
    "engine_error": "INTERNAL",
    "not_found": "NOT_FOUND",
    "too_large": "INVALID_ARGUMENT",
    "internal": "INTERNAL",
}
"""google.rpc.Code names."""

_RPC = "type.googleapis.com/google.rpc."


def error_value(error: ProxyError) -> dict[str, Json]:
    """The error object, for a body and for a stream alike. `error` is its first key: a client looks for just that text."""
    value: dict[str, Json] = {"code": error.status, "message": _message(error), "status": _STATUS[error.kind]}
    if details := _details(error):
        value["details"] = details
    return {"error": value}


def encode_error(error: ProxyError) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body)."""
    return error.status, error_headers(error), orjson.dumps(error_value(error))


def _message(error: ProxyError) -> str:
    """The vendor's own words for a full context, by which clients know it."""
    if error.kind == "context_overflow" and error.context is not None:
        used, limit = error.context
        return f"The input token count ({used}) exceeds the maximum number of tokens allowed ({limit})."
    return error.message


def _details(error: ProxyError) -> list[Json]:
    """How long to wait (one client reads it here and not in the header), and which field is at fault."""
    details: list[Json] = []
    if error.retry_after_s is not None:
        details.append({"@type": f"{_RPC}RetryInfo", "retryDelay": f"{max(1, math.ceil(error.retry_after_s))}s"})
    if error.param and error.kind != "context_overflow":  # its field has another dialect's name
        violation = {"field": error.param, "description": _message(error)}
        details.append({"@type": f"{_RPC}BadRequest", "fieldViolations": [violation]})
    return details
