"""Stop strings: engines return the tokens of the one that matched, clients must see the text before it only."""

from __future__ import annotations

from collections.abc import Sequence


class StopCutter:
    """Passes text on up to the first stop string, holding back what may still become one."""

    __slots__ = ("_pending", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._pending = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The part of the text so far that no stop string can touch any more."""
        if self.matched is not None:
            return ""
        self._pending += text
        hits = [(at, stop) for stop in self._stops if (at := self._pending.find(stop)) >= 0]
        if hits:
            at, self.matched = min(hits)
            shown, self._pending = self._pending[:at], ""
            return shown
        hold = max((partial_match(self._pending, stop) for stop in self._stops), default=0)
        cut = len(self._pending) - hold
        shown, self._pending = self._pending[:cut], self._pending[cut:]
        return shown

    def flush(self) -> str:
        """What was held back at the end, when it didn't become a stop string."""
        rest, self._pending = self._pending, ""
        return rest


def partial_match(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
