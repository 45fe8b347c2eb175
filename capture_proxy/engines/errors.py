"""Engines' errors as ours: what a status and a body mean, and how long to wait. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from capture_proxy.reply import ErrorKind, ProxyError

_CONTEXT: Final = re.compile(
    r"context[ _]length|context window|maximum (allowed|input|model) length|longer than the model|max_model_len",
    re.IGNORECASE,
)
"""How engines say that a prompt doesn't fit."""

_BUSY: Final = re.compile(r"queue is full|overloaded|too many (concurrent )?requests", re.IGNORECASE)
"""How engines say with a 503 that they work, but not for one more."""

_MESSAGE_CHARS: Final = 500


class EngineBusyError(ProxyError):
    """An engine that works, but not for this call and not now: its weights are changing, or its queue is full."""

    __slots__ = ()


def error_of(body: Any, status: int | None, retry_after: str | None = None) -> ProxyError:
    """An engine's error as ours. `body` in any engine's shape; `status` None: an event in a stream, which names its own.

    429, and 503 with a `Retry-After`, is an `EngineBusyError`.
    """
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    message = str(inner.get("message") or inner) if isinstance(inner, Mapping) else str(inner)
    if status is None:
        code = inner.get("code") if isinstance(inner, Mapping) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
    wait_s = retry_after_s(retry_after)
    kind: ErrorKind
    match status:
        case 400 | 413 | 422:
            kind = "context_overflow" if _CONTEXT.search(message) else "bad_request"
        case 429:
            kind = "overloaded"
        case 502 | 503 | 504:
            kind = "engine_unavailable"
        case _:
            kind = "engine_error"
    is_busy = status == 429 or (status == 503 and (wait_s is not None or _BUSY.search(message) is not None))
    error = EngineBusyError if is_busy else ProxyError
    return error(kind, f"the engine answered {status}: {message[:_MESSAGE_CHARS]}", retry_after_s=wait_s)


def retry_after_s(header: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds of a `Retry-After` header, given as a number or as an HTTP date; None where it says nothing."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - (now or datetime.now(UTC))).total_seconds())
    except ValueError:
        return None
