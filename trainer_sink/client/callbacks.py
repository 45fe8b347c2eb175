"""Callbacks of the HTTP API, for whoever receives them: is it genuine, is it fresh."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Final

SIGNATURE_HEADER: Final = "Polynya-Signature"
DELIVERY_HEADER: Final = "Polynya-Delivery"
EVENT_HEADER: Final = "Polynya-Event"

TOLERANCE_S: Final = 300.0
"""How old a signature may be; retries are signed anew."""

_TIME_DIGITS: Final = 20


def sign_callback(key: str, body: bytes, at_s: int) -> str:
    """The signature header of a body at a time (UTC epoch seconds): `t=TIME,v1=HMAC-SHA256(key, "TIME." + body) in hex`."""
    digest = hmac.new(key.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def verify_callback(
    key: str, body: bytes, header: str, *, tolerance_s: float = TOLERANCE_S, now_s: float | None = None
) -> bool:
    """Whether the body was signed with this key (`polynya api key --callbacks`), not longer ago than `tolerance_s`.

    `header` is the value of `Polynya-Signature`; `body` the bytes as they came. De-duplicate by `Polynya-Delivery`.
    """
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    time_text = parts.get("t", "")
    if not time_text.isascii() or not time_text.isdigit() or len(time_text) > _TIME_DIGITS:
        return False
    expected = sign_callback(key, body, int(time_text))
    now_s = time.time() if now_s is None else now_s
    given = f"t={time_text},v1={parts.get('v1', '')}"
    return hmac.compare_digest(expected.encode(), given.encode()) and abs(now_s - int(time_text)) <= tolerance_s
