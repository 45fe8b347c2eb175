"""Refused requests on the log: each is a fact, but a flood of them may not fill the spool."""

from __future__ import annotations

import time
from typing import Any, Final

from capture_proxy import records
from capture_proxy.ports import now_ms
from capture_proxy.spool import Spool

# Of wrong secrets, say: above this rate rejections are counted, and the next one carries the count.
_PER_S: Final = 50.0
_BURST: Final = 200.0


class Rejections:
    """Appends rejections, numbered, up to a rate."""

    def __init__(self, spool: Spool, *, proxy_id: str, incarnation: str) -> None:
        self._spool = spool
        self._proxy_id = proxy_id
        self._incarnation = incarnation
        self._number = 0
        self._suppressed = 0
        self._tokens = _BURST
        self._tokens_at = time.monotonic()

    def add(self, **facts: Any) -> None:
        """Appends one, unless too many come: those are counted, and the next one carries the count."""
        now = time.monotonic()
        self._tokens = min(_BURST, self._tokens + (now - self._tokens_at) * _PER_S)
        self._tokens_at = now
        if self._tokens < 1.0 or self._spool.relay.unacked_bytes >= self._spool.limit_bytes:
            self._suppressed += 1
            return
        self._tokens -= 1.0
        self._number += 1
        if self._suppressed:
            facts["details"] = {**facts.get("details", {}), "suppressed_before": self._suppressed}
            self._suppressed = 0
        self._spool.append(
            records.rejection(
                proxy_id=self._proxy_id, incarnation=self._incarnation, number=self._number, at=now_ms(), **facts
            )
        )
