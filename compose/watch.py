"""Follow sessions to their end: what `submit --wait`, the demo and the tests look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bus import Bus
from schemas.records import ScoredTrajectory, SessionEvent, SessionEventType

# Facts on rollout.sessions in the words that a progress line uses.
PROGRESS = {
    SessionEventType.REGISTERED: "queued",
    SessionEventType.INIT_ASSIGNED: "init",
    SessionEventType.READY: "ready",
    SessionEventType.GRANTED: "ready",
    SessionEventType.STARTED: "running",
    SessionEventType.FINISHED: "finished",
    SessionEventType.SEALED: "sealed",
    SessionEventType.GRADED: "graded",
    SessionEventType.ENDED: "ended",
    SessionEventType.LEASE_EXPIRED: "queued",
}


@dataclass(slots=True)
class Progress:
    """Where the watched sessions stand, and the results so far."""

    expected: int
    stages: dict[str, str] = field(default_factory=dict)
    events: list[SessionEvent] = field(default_factory=list)
    scored: dict[str, ScoredTrajectory] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Every expected session has its scored trajectory."""
        return len(self.scored) >= self.expected

    def summary(self) -> str:
        """One line, for example `8 sessions: 3 running, 5 scored`."""
        counts: dict[str, int] = {}
        for session, stage in self.stages.items():
            label = "scored" if session in self.scored else stage
            counts[label] = counts.get(label, 0) + 1
        if (unheard := self.expected - len(self.stages)) > 0:
            counts["waiting"] = unheard
        return f"{self.expected} sessions: " + ", ".join(f"{n} {s}" for s, n in sorted(counts.items()))


async def follow(
    bus: Bus,
    task_ids: Iterable[str],
    *,
    expected: int,
    since_ms: int,
    timeout_s: float,
    on_change: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Watch the sessions of some tasks until each has a scored trajectory; TimeoutError after `timeout_s`."""
    wanted = set(task_ids)
    progress = Progress(expected)
    done = asyncio.Event()

    async def read_facts() -> None:
        async for delivery in bus.tail(["rollout.sessions"], start=since_ms):
            event = delivery.decode()
            if isinstance(event, SessionEvent) and event.task_id in wanted:
                progress.events.append(event)
                progress.stages[event.session_id] = PROGRESS.get(
                    event.type, progress.stages.get(event.session_id, "queued")
                )
                on_change(progress)

    async def read_results() -> None:
        async for delivery in bus.tail(["trajectory.scored"], start=since_ms):
            result = delivery.decode()
            if isinstance(result, ScoredTrajectory) and result.task_id in wanted:
                progress.scored.setdefault(result.session_id, result)
                on_change(progress)
                if progress.is_done:
                    done.set()

    async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
        readers = [group.create_task(read_facts()), group.create_task(read_results())]
        await done.wait()
        for reader in readers:
            reader.cancel()
    return progress


async def session_facts(bus: Bus, session_id: str) -> list[SessionEvent]:
    """The facts of one session that the log holds now, in order."""
    key = session_id.encode()
    return [
        event
        async for delivery in bus.tail(["rollout.sessions"], start="earliest", until_end=True)
        if delivery.key == key and isinstance(event := delivery.decode(), SessionEvent)
    ]
