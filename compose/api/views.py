"""The API's view of the log: follows it into a projection from the start on, says how far it is, and waits for what comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from bus import Bus, Delivery, Position
from bus.claims import resolve
from compose.api.follow import Follower
from compose.api.projection import Projection, ScoredHead
from schemas.records import Heartbeat, Record, ScoredTrajectory

FACTS: Final = (
    "rollout.tasks",
    "rollout.groups",
    "rollout.sessions",
    "rollout.state",
    "trajectory.scored",
    "rollout.callbacks",
)
NODES: Final = "rollout.nodes"

NODES_SINCE_MS: Final = 120_000
"""Of heartbeats only the last ones matter."""

_DECODED: Final = frozenset({b"registered", b"forgotten", b""})
"""Facts that say more than that they stand there; of the others the headers are enough."""


class Views:
    """Follows the log and lets others wait for it. One process has one; several processes come to know the same."""

    def __init__(self, bus: Bus, *, max_sessions: int) -> None:
        self._bus = bus
        self.rows = Projection(max_sessions=max_sessions)
        self._facts = Follower(bus, "facts", FACTS, self._take)
        since = int(time.time() * 1000) - NODES_SINCE_MS
        self._nodes = Follower(bus, "nodes", [NODES], self._take, start=since)
        self._running: list[asyncio.Task[None]] = []
        self._ends: dict[str, list[asyncio.Event]] = {}

    def start(self) -> None:
        """Begin to follow."""
        self._running = [
            asyncio.create_task(f.run(), name=f"view-{n}") for n, f in (("facts", self._facts), ("nodes", self._nodes))
        ]

    async def stop(self) -> None:
        """Stop following."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    @property
    def is_caught_up(self) -> bool:
        """Whether the log has been read to its end once."""
        return self._facts.caught_up.is_set() and self._nodes.caught_up.is_set()

    @property
    def problems(self) -> list[str]:
        """What keeps the views from going on."""
        return [f.problem for f in (self._facts, self._nodes) if f.problem]

    @property
    def unreadable(self) -> int:
        """Records that were passed over."""
        return self._facts.unreadable + self._nodes.unreadable

    def workers(self) -> Iterator[Heartbeat]:
        """The newest heartbeat of each worker."""
        return (beat for beat in self.rows.nodes.values() if beat.role == "worker")

    async def wait_caught_up(self) -> None:
        """Wait until the log has been read to its end once."""
        await self._facts.caught_up.wait()
        await self._nodes.caught_up.wait()

    async def wait_past(self, position: Position) -> None:
        """Wait until what was published there has been read."""
        await self._facts.wait_past(position.topic, position.partition, position.offset)

    async def lag(self) -> int:
        """Records that haven't been read; asks Kafka."""
        return await self._facts.lag() + await self._nodes.lag()

    async def wait_ended(self, task_id: str, timeout_s: float) -> None:
        """Wait until a task has ended, at most so long."""
        row = self.rows.tasks.get(task_id)
        if row is None or row.is_ended or timeout_s <= 0:
            return
        event = asyncio.Event()
        self._ends.setdefault(task_id, []).append(event)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return
        finally:
            self._ends[task_id].remove(event)
            if not self._ends[task_id]:
                del self._ends[task_id]

    async def _take(self, delivery: Delivery) -> None:
        place = (delivery.partition, delivery.offset)
        if delivery.topic == "trajectory.scored":
            ended = self.rows.take_scored(await self._head(delivery), *place)
            for event in self._ends.get(ended.task_id, ()) if ended is not None else ():
                event.set()
            return
        if delivery.is_tombstone:
            if delivery.topic == "rollout.state" and delivery.key is not None:
                self.rows.drop_session(delivery.key.decode("utf-8", "replace"))
            return
        if delivery.topic == "rollout.sessions":
            headers = delivery.headers
            name = headers.get("session_id", b"").decode("utf-8", "replace")
            if headers.get("type", b"") not in _DECODED and self.rows.note_fact(name, *place):
                return
        self.rows.take(await self._record(delivery), *place)

    async def _head(self, delivery: Delivery) -> ScoredHead:
        head = ScoredHead.of_headers(delivery.headers)
        if head is not None:
            return head
        record = await self._record(delivery)
        if not isinstance(record, ScoredTrajectory):
            raise TypeError(f"a {record.NAME} doesn't belong on {delivery.topic}")
        return ScoredHead.of_record(record)

    async def _record(self, delivery: Delivery) -> Record:
        return (await resolve(delivery, self._bus.blobs)).decode()
