"""The whole log of a storm, read once at its end: records by kind, and what lies in dead-letter topics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bus import Bus
from schemas.records import (
    CompletionDelivery,
    CompletionRecord,
    Record,
    Reward,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionOpened,
    SessionSealed,
    SessionState,
    Trajectory,
)
from schemas.topics import dead_letter_topics

TOPICS = (
    "rollout.sessions",
    "rollout.state",
    "capture.completions",
    "trajectory.built",
    "reward.assigned",
    "trajectory.scored",
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that some part set aside."""

    topic: str
    reason: str
    where: str


@dataclass(slots=True)
class Log:
    """Records in log order within a partition; repeats included."""

    events: list[SessionEvent] = field(default_factory=list)
    states: list[SessionState] = field(default_factory=list)
    opened: list[SessionOpened] = field(default_factory=list)
    completions: list[CompletionRecord] = field(default_factory=list)
    deliveries: list[CompletionDelivery] = field(default_factory=list)
    sealed: list[SessionSealed] = field(default_factory=list)
    built: list[Trajectory] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    scored: list[ScoredTrajectory] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Take one record in; kinds that no check looks at are left out."""
        homes: dict[type[Record], list[Any]] = {
            SessionEvent: self.events,
            SessionState: self.states,
            SessionOpened: self.opened,
            CompletionRecord: self.completions,
            CompletionDelivery: self.deliveries,
            SessionSealed: self.sealed,
            Trajectory: self.built,
            Reward: self.rewards,
            ScoredTrajectory: self.scored,
        }
        home = homes.get(type(record))
        if home is not None:
            home.append(record)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Log:
        """A log of these records."""
        log = cls()
        for record in records:
            log.add(record)
        return log

    @property
    def ends(self) -> dict[str, list[SessionEvent]]:
        """The terminal facts of each session, repeats included."""
        found: dict[str, list[SessionEvent]] = defaultdict(list)
        for event in self.events:
            if event.type is SessionEventType.ENDED:
                found[event.session_id].append(event)
        return dict(found)

    @property
    def last_built(self) -> dict[str, Trajectory]:
        """Each lease's last revision."""
        last: dict[str, Trajectory] = {}
        for one in self.built:
            if one.lease_id not in last or one.revision >= last[one.lease_id].revision:
                last[one.lease_id] = one
        return last

    @property
    def last_scored(self) -> dict[str, ScoredTrajectory]:
        """Each session's last revision."""
        last: dict[str, ScoredTrajectory] = {}
        for one in self.scored:
            if one.session_id not in last or one.revision >= last[one.session_id].revision:
                last[one.session_id] = one
        return last


async def read_log(bus: Bus) -> Log:
    """Everything that stands on the log now."""
    log = Log()
    async for delivery in bus.tail(TOPICS, start="earliest", until_end=True):
        if not delivery.is_tombstone:
            log.add(delivery.decode())
    names = [topic.name for topic in dead_letter_topics()]
    async for delivery in bus.tail(names, start="earliest", until_end=True):
        reason = delivery.headers.get("dead_reason", b"?").decode("utf-8", "replace")
        error = delivery.headers.get("dead_error", b"").decode("utf-8", "replace")
        log.dead.append(DeadLetter(delivery.topic, f"{reason}: {error[:200]}", delivery.where))
    return log
