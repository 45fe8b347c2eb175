"""The clock through which the proxy's core sees the time."""

from __future__ import annotations

import time


def now_ms() -> int:
    """UTC epoch milliseconds."""
    return time.time_ns() // 1_000_000
