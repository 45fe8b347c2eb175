"""What the error answers of all dialects share: headers."""

from __future__ import annotations

import math

from capture_proxy.reply import ProxyError

_FINAL_KINDS = frozenset({"unauthorized", "lease_ended", "bad_request", "context_overflow", "not_found", "too_large"})


def error_headers(error: ProxyError) -> dict[str, str]:
    """Content type, `Retry-After` in whole seconds where it is known, and a word to SDKs that would retry for nothing."""
    headers = {"content-type": "application/json"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.kind in _FINAL_KINDS:
        headers["x-should-retry"] = "false"  # the vendors' SDKs retry a 409 otherwise
    return headers
