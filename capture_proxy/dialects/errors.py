"""What the error answers of all dialects share: headers."""

from __future__ import annotations

import math

from capture_proxy.reply import ProxyError

_FINAL_KINDS = frozenset({"unauthorized", "lease_ended", "bad_request", "context_overflow", "not_found", "too_large"})


def stream_text(error: ProxyError) -> str:
    """An error's text for a stream, with the status in front where it is worth asking again.

    Before a stream the status stands beside the text, and the vendors' SDKs put it in front. Inside of one there is nothing but the
    text, and there are clients that give up when they don't find in it why they should ask again.
    """
    return error.message if error.kind in _FINAL_KINDS else f"{error.status} {error.message}"


def error_headers(error: ProxyError) -> dict[str, str]:
    """Content type, `Retry-After` in whole seconds where it is known, and a word to SDKs that would retry for nothing."""
    headers = {"content-type": "application/json"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.kind in _FINAL_KINDS:
        headers["x-should-retry"] = "false"  # the vendors' SDKs retry a 409 otherwise
    return headers
