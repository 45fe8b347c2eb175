"""What the timer published a moment ago: told once, and again when it seems lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from schemas.records import GroupEvent, SessionEvent

PENDING_MS: Final = 10_000
"""A fact is published again when its row hasn't moved on after that long."""

F = TypeVar("F", SessionEvent, GroupEvent)


class Pending(Generic[F]):
    """Facts by their event id, until they are applied."""

    def __init__(self) -> None:
        self._facts: dict[str, tuple[F, int]] = {}

    @property
    def facts(self) -> list[F]:
        """What isn't applied yet."""
        return [fact for fact, _ in self._facts.values()]

    def settle(self, moved_at: Callable[[F], int | None], now: int) -> None:
        """Forget what was applied (`moved_at`: when its row last moved, None when it has none), and what seems lost."""
        self._facts = {
            event_id: (fact, at)
            for event_id, (fact, at) in self._facts.items()
            if (moved := moved_at(fact)) is not None and moved < at and now - at < PENDING_MS
        }

    def fresh(self, facts: Iterable[F], now: int) -> list[F]:
        """Those that aren't on their way already; they are from now on."""
        new = [fact for fact in facts if fact.event_id not in self._facts]
        self._facts |= {fact.event_id: (fact, now) for fact in new}
        return new

    def failed(self, event_id: str) -> None:
        """One couldn't be published."""
        self._facts.pop(event_id, None)
