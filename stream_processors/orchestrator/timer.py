"""The orchestrator's timer: what clocks, beats, controls and lags make due becomes facts, each published once until it is applied."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bus import Bus, BusError
from schemas.records import Control, GroupEvent, Record, SessionEvent
from schemas.records import GroupEventType as GroupFact
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.books import GroupBooks, SessionBooks
from stream_processors.orchestrator.groups.admission import SeenGroups, admissions
from stream_processors.orchestrator.pending import Pending
from stream_processors.orchestrator.tick import Limits, Seen, tick
from stream_processors.orchestrator.views import Views
from stream_processors.settings import ProcessorSettings

_log = structlog.get_logger(__name__)

PUBLISH_DEADLINE_S: Final = 10.0
TOGETHER_S: Final = 0.02
"""What comes within that is looked at once."""
PROBE_S: Final = 1.0
"""How often, at most, the ends of the log are asked for while all of it is read as it comes: two requests each time."""
FORGET_BEATS_MS: Final = 3_600_000
SWEEP_MS: Final = 60_000
"""How often the views drop what nobody can mean any more."""
FORGET_CONTROLS_MS: Final = 7 * 24 * 3_600_000
"""The retention of rollout.control: after a restart an older cancel wouldn't be known either."""


class Timer:
    """Looks at the books and the views every `tick_s`, and at once when nudged."""

    def __init__(
        self,
        bus: Bus,
        settings: ProcessorSettings,
        views: Views,
        sessions: SessionBooks,
        groups: GroupBooks,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._views = views
        self._sessions = sessions
        self._groups = groups
        self._clock = clock
        self._pending: Pending[SessionEvent] = Pending()
        self._pending_groups: Pending[GroupEvent] = Pending()
        self._swept_at = 0
        self._nudged = asyncio.Event()
        self._probe_at = 0.0
        self._probe_s = min(PROBE_S, settings.lease_ttl_s / 8)
        self._limits = Limits(
            lease_ttl_ms=int(settings.lease_ttl_s * 1000),
            seal_grace_ms=int(settings.seal_grace_s * 1000),
            end_grace_ms=int(settings.end_grace_s * 1000),
            command_grace_ms=int(settings.command_grace_s * 1000),
        )

    def nudge(self) -> None:
        """A group waits: it may be due at once."""
        self._nudged.set()

    async def run(self) -> None:
        """Look, probe and publish until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.tick_s):
                    await self._nudged.wait()
            await asyncio.sleep(min(self._settings.tick_s, TOGETHER_S))
            self._nudged.clear()
            await self._probe()
            await self._publish(self.due())

    async def _probe(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._views.fleet.fresh_since is None or now >= self._probe_at:
            self._probe_at = now + self._probe_s
            await self._views.probe()

    async def _publish(self, facts: Sequence[Record]) -> None:
        """Publish in order; what couldn't be is due again at the next look."""
        for number, fact in enumerate(facts):
            try:
                await self._bus.publish(fact, deadline_s=PUBLISH_DEADLINE_S)
            except BusError as error:
                _log.warning("fact.unpublished", fact=getattr(fact, "type", ""), key=fact.key, error=repr(error))
                for left in facts[number:]:
                    self._pending.failed(left.event_id)
                    self._pending_groups.failed(left.event_id)
                return

    def due(self) -> list[Record]:
        """The facts that are due now and weren't published a moment ago."""
        now = self._clock()
        return [*self._of_sessions(now), *self._of_groups(now), *self._sweep(now)]

    def _of_sessions(self, now: int) -> list[SessionEvent]:
        rows = self._sessions.live()

        def moved_at(fact: SessionEvent) -> int | None:
            row = rows.get(fact.session_id)
            return None if row is None else row.moved_at

        self._pending.settle(moved_at, now)
        views = self._views
        seen = Seen(
            list(rows.values()),
            views.fleet,
            self._limits,
            now,
            views.controls,
            self._pending.facts,
            may_assign=views.are_whole,
        )
        keep_ms = int(self._settings.forget_after_s * 1000)
        forgotten = [
            SessionEvent(session_id=name, type=Fact.FORGOTTEN, at=now) for name in self._sessions.overdue(now, keep_ms)
        ]
        return self._pending.fresh(tick(seen), now) + forgotten

    def _of_groups(self, now: int) -> list[GroupEvent]:
        rows = self._groups.live()

        def moved_at(fact: GroupEvent) -> int | None:
            row = rows.get(fact.group_id)
            return None if row is None else row.moved_at

        self._pending_groups.settle(moved_at, now)
        due: list[GroupEvent] = []
        if self._views.are_whole:
            seen = SeenGroups(
                self._groups.waiting(),
                self._views.controls,
                self._views.ledger,
                self._settings.max_lag_groups,
                now,
                self._pending_groups.facts,
            )
            due = self._pending_groups.fresh(admissions(seen), now)
        keep_ms = int(self._settings.forget_after_s * 1000)
        return due + [
            GroupEvent(group_id=name, type=GroupFact.FORGOTTEN, at=now) for name in self._groups.overdue(now, keep_ms)
        ]

    def _sweep(self, now: int) -> list[Control]:
        """Let the views forget; the pauses and drains that have to be told again before retention takes them."""
        if now - self._swept_at < SWEEP_MS:
            return []
        self._swept_at = now
        views = self._views
        views.fleet.forget(now - FORGET_BEATS_MS)
        views.controls.forget(now - FORGET_CONTROLS_MS)
        views.ledger.forget(now)
        return views.controls.renewals(now) if views.are_whole else []
