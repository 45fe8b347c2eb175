"""What operators and trainers ask of the fleet, as read from rollout.control: cancels, and what is paused or drained now.

A view in memory, by the times at which the log has the controls; what stays in force for long is published again before the
topic's retention takes it (`renewals`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from schemas.records import Control, ControlAction
from schemas.topics import DAY_MS

FLEET: Final = "fleet"
"""The kind of target that means everything; its target is `*`."""

ISSUER: Final = "orchestrator"
RENEW_AFTER_MS: Final = DAY_MS
"""A pause is told again when it was last told that long ago: well within the topic's seven days."""

_STANDING: Final = frozenset({ControlAction.PAUSE, ControlAction.DRAIN, ControlAction.RESUME})

Names = Mapping[str, str]
"""What a thing may be called by a control: kind of target → target."""


@dataclass(frozen=True, slots=True)
class Span:
    """From when until when (None: until it is resumed) something is paused or drained, in UTC epoch ms."""

    action: ControlAction
    from_at: int
    to_at: int | None

    def is_over(self, at: int) -> bool:
        """Whether it has ended by then."""
        return self.to_at is not None and self.to_at <= at


@dataclass(slots=True)
class Controls:
    """All controls that still mean something."""

    cancels: list[Control] = field(default_factory=list)
    _standing: dict[tuple[str, str], list[Control]] = field(default_factory=dict)
    _told_at: dict[str, int] = field(default_factory=dict)
    _spans: dict[tuple[str, str], list[Span]] = field(default_factory=dict)

    @classmethod
    def of(cls, *controls: Control) -> Self:
        """The view after these, each told at its `at`."""
        view = cls()
        for control in controls:
            view.take(control, control.at)
        return view

    def take(self, control: Control, told_at: int) -> None:
        """Note a control that the log has since `told_at`; its issuer's own clock doesn't matter."""
        # One that is told again is in force since it was first told.
        since = control.at if control.issuer == ISSUER else told_at
        control = replace(control, at=since)
        if control.action is ControlAction.CANCEL:
            if control not in self.cancels:
                self.cancels.append(control)
        elif control.action in _STANDING:
            place = _place(control)
            told = self._standing.setdefault(place, [])
            if all(other.control_id != control.control_id for other in told):
                told.append(control)
                told.sort(key=lambda c: c.at)
            self._told_at[control.control_id] = max(told_at, self._told_at.get(control.control_id, 0))
            self._spans.clear()

    def cancel_of(self, names: Names, since_at: int, lease_id: str | None = None) -> Control | None:
        """The first cancel of something that exists since `since_at`: one from before means an earlier one."""
        for control in self.cancels:
            is_meant = control.target in ("*", names.get(control.target_kind))
            is_lease = control.lease_id in ("", lease_id)
            if is_meant and is_lease and control.at >= since_at:
                return control
        return None

    def holds(self, names: Names, now: int) -> ControlAction | None:
        """PAUSE or DRAIN when that is in force for one of these names, the stronger of the two; else None."""
        if not self._standing:
            return None
        found = {spans[-1].action for spans in self._of(names) if spans and not spans[-1].is_over(now)}
        if ControlAction.PAUSE in found:
            return ControlAction.PAUSE
        return ControlAction.DRAIN if found else None

    def holds_node(self, node_id: str, now: int) -> bool:
        """Whether a worker gets nothing new; what holds the whole fleet holds groups and sessions, not its workers."""
        spans = self._spans_of(("node", node_id)) if self._standing else []
        return bool(spans) and not spans[-1].is_over(now)

    def paused_ms(self, names: Names, since_at: int, until_at: int) -> int:
        """How long it was paused between two times."""
        cuts: list[tuple[int, int]] = []
        for spans in self._of(names):
            for span in spans:
                begin, end = max(since_at, span.from_at), min(until_at, until_at if span.to_at is None else span.to_at)
                if span.action is ControlAction.PAUSE and begin < end:
                    cuts.append((begin, end))
        total, reached = 0, since_at
        for begin, end in sorted(cuts):
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    def in_force(self, now: int) -> dict[tuple[str, str], Span]:
        """What is paused or drained now, by (kind, target)."""
        return {
            place: spans[-1]
            for place in self._standing
            if (spans := self._spans_of(place)) and not spans[-1].is_over(now)
        }

    def renewals(self, now: int) -> list[Control]:
        """What is in force and was told too long ago for the topic's retention, to be told again."""
        due: list[Control] = []
        for place in self.in_force(now):
            last = self._standing[place][-1]
            if now - self._told_at[last.control_id] >= RENEW_AFTER_MS:
                due.append(replace(last, issuer=ISSUER))
        return due

    def forget(self, before: int) -> None:
        """Drop what was told before then: nothing that it could mean still runs. Of what is in force the last word stays."""
        self.cancels = [c for c in self.cancels if c.at >= before]
        in_force = self.in_force(before)
        for place, told in list(self._standing.items()):
            kept = [c for c in told if c.at >= before] or (told[-1:] if place in in_force else [])
            if kept:
                self._standing[place] = kept
            else:
                del self._standing[place]
        known = {c.control_id for told in self._standing.values() for c in told}
        self._told_at = {name: at for name, at in self._told_at.items() if name in known}
        self._spans.clear()

    def _of(self, names: Names) -> Iterable[list[Span]]:
        if not self._standing:
            return
        yield self._spans_of((FLEET, "*"))
        for kind, target in names.items():
            yield self._spans_of((kind, target))

    def _spans_of(self, place: tuple[str, str]) -> list[Span]:
        known = self._spans.get(place)
        if known is None:
            known = self._spans[place] = self._make_spans(place)
        return known

    def _make_spans(self, place: tuple[str, str]) -> list[Span]:
        told = list(self._standing.get(place, ()))
        if told and place != (FLEET, "*"):  # resuming the fleet ends whatever holds a part of it
            resumed = [c for c in self._standing.get((FLEET, "*"), ()) if c.action is ControlAction.RESUME]
            told = sorted([*told, *resumed], key=lambda c: c.at)
        spans: list[Span] = []
        for control in told:
            to_at = control.at + control.for_ms if control.for_ms else None
            if spans and not spans[-1].is_over(control.at):
                if spans[-1].action is control.action:  # told again: the last word says until when
                    spans[-1] = replace(spans[-1], to_at=to_at)
                    continue
                spans[-1] = replace(spans[-1], to_at=control.at)
            if control.action is not ControlAction.RESUME:
                spans.append(Span(control.action, control.at, to_at))
        return spans


def _place(control: Control) -> tuple[str, str]:
    return (FLEET, "*") if control.target == "*" else (control.target_kind, control.target)
