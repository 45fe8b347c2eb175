"""Errors of the Responses API: OpenAI's shape before the stream, `response.failed` inside it."""

from __future__ import annotations

from typing import Final

from capture_proxy.dialects.openai_chat.errors import encode_error
from capture_proxy.reply import ErrorKind, Json, ProxyError

_CODE: Final[dict[ErrorKind, str]] = {
    "unauthorized": "invalid_prompt",
    "lease_ended": "invalid_prompt",
    "bad_request": "invalid_prompt",
    "context_overflow": "context_length_exceeded",
    "overloaded": "rate_limit_exceeded",
    "engine_unavailable": "server_error",
    "engine_error": "server_error",
    "not_found": "invalid_prompt",
    "too_large": "invalid_prompt",
    "internal": "server_error",
}
"""Codes by which clients decide: `invalid_prompt` ends the turn, the others but `context_length_exceeded` invite a retry."""


def failure(error: ProxyError) -> dict[str, Json]:
    """The `error` of a failed response."""
    return {"code": error.code or _CODE[error.kind], "message": error.message}


__all__ = ["encode_error", "failure"]
