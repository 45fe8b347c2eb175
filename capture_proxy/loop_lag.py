"""How late the event loop is: what an overloaded proxy shows first, and the reason to take no more calls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

_EVERY_S: Final = 0.25
_SUSTAINED: Final = 3
"""Probes in a row that must be late: one long step (a large body, a collection of garbage) is no overload."""
_KEPT: Final = 240  # probes: at least a minute


class LoopLag:
    """Wakes up at fixed intervals and notes by how much it was late."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._lags: deque[float] = deque(maxlen=_KEPT)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to probe."""
        self._task = asyncio.create_task(self._probe(), name="loop-lag")

    async def stop(self) -> None:
        """Stops probing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def sustained_s(self) -> float:
        """By how much every one of the last probes was late at least."""
        recent = list(self._lags)[-_SUSTAINED:]
        return min(recent) if len(recent) == _SUSTAINED else 0.0

    def describe(self) -> dict[str, float]:
        """For `GET /health`, in milliseconds."""
        lags = sorted(self._lags)
        return {
            "now_ms": round(self._lags[-1] * 1000.0, 1) if lags else 0.0,
            "sustained_ms": round(self.sustained_s * 1000.0, 1),
            "p99_ms": round(lags[int(len(lags) * 0.99)] * 1000.0, 1) if lags else 0.0,
            "worst_ms": round(lags[-1] * 1000.0, 1) if lags else 0.0,
        }

    async def _probe(self) -> None:
        while True:
            due = time.monotonic() + self._every_s
            await asyncio.sleep(self._every_s)
            self._lags.append(max(0.0, time.monotonic() - due))
