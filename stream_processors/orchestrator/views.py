"""What the orchestrator knows of others, in memory: the fleet, the controls, the trainers; and how far that can be trusted.

Each view is made by reading its topics; `probe` compares what has been read with where the log ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from bus import Bus, BusError, Delivery, Reader, Start
from schemas.records import BatchConsumed, Control, GroupEvent, Heartbeat, Record, TrainerRegistered
from schemas.records import GroupEventType as GroupFact
from stream_processors.orchestrator.controls import Controls
from stream_processors.orchestrator.fleet import FleetView
from stream_processors.orchestrator.groups.ledger import Ledger

_log = structlog.get_logger(__name__)

PROBE_S: Final = 2.0
"""How long the broker may take to say where the log ends; longer is an outage, after which nobody is declared dead."""

NODES: Final = "rollout.nodes"
SESSIONS: Final = "rollout.sessions"
WHOLE: Final = ("rollout.control", "trainer.consumed", "rollout.groups")
"""Read from their beginning; nothing is given away before they have been read to their end once."""

Places = dict[int, int]
"""Partition → next offset."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the log ended at a time."""

    at: int
    nodes: Places
    sessions: Places


class Views:
    """The fleet, the controls and the ledger; `clock` is UTC epoch ms."""

    def __init__(self, bus: Bus, name: str, *, lease_ttl_ms: int, clock: Callable[[], int]) -> None:
        self._bus = bus
        self._name = name
        self._ttl_ms = lease_ttl_ms
        self._clock = clock
        self.fleet = FleetView()
        self.controls = Controls()
        self.ledger = Ledger()
        self._read_to: dict[str, Places] = {NODES: {}, SESSIONS: {}}
        self._ends: deque[Ends] = deque()
        self._unread = set(WHOLE)
        self._probed_at: int | None = None

    @property
    def are_whole(self) -> bool:
        """Whether everything that forbids something has been read once."""
        return not self._unread

    def doubt(self) -> None:
        """From now on silence means nothing before a full period of reading."""
        self.fleet.fresh_since = None

    def handled(self, delivery: Delivery) -> None:
        """Note that the agent has dealt with a record."""
        if delivery.topic == SESSIONS:
            self._read_to[SESSIONS][delivery.partition] = delivery.offset + 1

    def assigned(self) -> None:
        """Other partitions are ours: what was handled before says nothing about them."""
        self._read_to[SESSIONS] = {}
        self.doubt()

    def reading(self) -> list[Coroutine[Any, Any, None]]:
        """The readers, to be run beside the agent."""
        # Of beats only the last matter.
        since = max(0, self._clock() - self._ttl_ms)
        starts: Mapping[str, Start] = {NODES: since, **dict.fromkeys(WHOLE, "earliest")}
        self._read_to[NODES] = {}
        return [self._reader(topic, start).run() for topic, start in starts.items()]

    def _reader(self, topic: str, start: Start) -> Reader:
        return Reader(
            self._bus,
            self._name,
            topic,
            self._see,
            topics=[topic],
            start=start,
            on_interrupted=self.doubt,
            on_caught_up=lambda: self._unread.discard(topic),
        )

    async def _see(self, delivery: Delivery, record: Record | None) -> None:
        at = delivery.timestamp_ms
        if isinstance(record, Heartbeat):
            self.fleet.take(record, self._clock())
        elif isinstance(record, Control):
            self.controls.take(record, at)
        elif isinstance(record, TrainerRegistered):
            self.ledger.take_beat(record, at)
        elif isinstance(record, BatchConsumed):
            self.ledger.take_batch(record)
        elif isinstance(record, GroupEvent) and record.type in (GroupFact.ADMITTED, GroupFact.CLOSED):
            home = await self._bus.partition_for("trajectory.scored", record.group_id)
            self.ledger.take_group(record, at, home)
        if delivery.topic == NODES:
            self._read_to[NODES][delivery.partition] = delivery.offset + 1

    async def probe(self) -> None:
        """Note whether the log is being read as it comes: everything that stood on it a tick ago has been read.

        A loop that itself stood still (a stopped process, a machine that slept) has seen nothing either.
        """
        now = self._clock()
        if self._probed_at is not None and now - self._probed_at > self._ttl_ms / 2:
            _log.warning("orchestrator.stalled", for_s=(now - self._probed_at) / 1000)
            self.doubt()
        self._probed_at = now
        try:
            async with asyncio.timeout(PROBE_S):
                ends = Ends(now, await self._bus.end_offsets(NODES), await self._bus.end_offsets(SESSIONS))
        except (BusError, TimeoutError) as error:
            _log.warning("fleet.unread", error=repr(error))
            self.doubt()
            return
        if not self._is_read():
            self.doubt()
        elif self.fleet.fresh_since is None:
            self.fleet.fresh_since = self._clock()
        self._ends.append(ends)
        # Facts may come faster than they are handled for a moment; half a time to live behind is behind.
        while len(self._ends) > 1 and now - self._ends[1].at >= self._ttl_ms / 2:
            self._ends.popleft()

    def _is_read(self) -> bool:
        if not self._ends:
            return False
        beats, facts = self._read_to[NODES], self._read_to[SESSIONS]
        return all(beats.get(p, end) >= end for p, end in self._ends[-1].nodes.items()) and all(
            facts.get(p, end) >= end for p, end in self._ends[0].sessions.items()
        )
