"""Google errors: what the vendor's clients look for in them."""

from __future__ import annotations

from typing import Any

import orjson

from capture_proxy.dialects.google import DIALECT
from capture_proxy.reply import ProxyError


def error_of(error: ProxyError) -> dict[str, Any]:
    """The `error` object of an answer."""
    body = DIALECT.encode_error(error)[2]
    assert body.startswith(b'{"error":')
    value: dict[str, Any] = orjson.loads(body)["error"]
    return value


def test_a_wait_stands_in_the_header_and_in_the_details() -> None:
    """Gemini CLI reads RetryInfo and not Retry-After; others the reverse."""
    error = ProxyError("overloaded", "busy", retry_after_s=6.2)
    assert DIALECT.encode_error(error)[1]["retry-after"] == "7"
    [detail] = error_of(error)["details"]
    assert detail == {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}


def test_the_field_at_fault_is_named() -> None:
    """As a violation, where the vendor names it."""
    [detail] = error_of(ProxyError("bad_request", "contents[0].role: no", param="contents[0].role"))["details"]
    assert detail["@type"].endswith("google.rpc.BadRequest")
    assert detail["fieldViolations"] == [{"field": "contents[0].role", "description": "contents[0].role: no"}]


def test_a_full_context_is_said_in_the_vendors_words() -> None:
    """Clients compact when they read this sentence; without counts the message stays as it is."""
    error = ProxyError("context_overflow", "too long", context=(9000, 8192))
    assert error_of(error)["message"] == (
        "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."
    )
    assert error_of(ProxyError("context_overflow", "too long"))["message"] == "too long"
