"""The joiner on Kafka: publishes one scored trajectory per session and revision, keyed by group."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog

from bus import Bus, Delivery, PoisonError
from bus.claims import resolve_value
from schemas.codec import decode
from schemas.records import SessionEvent, SessionEventType, Trajectory
from stream_processors.app import Table, drop
from stream_processors.joiner.core import apply, headers_of, is_complete, revisions, score
from stream_processors.joiner.row import SessionRow

_log = structlog.get_logger(__name__)


class Joiner:
    """rollout.sessions + trajectory.built + reward.assigned → trajectory.scored.

    Table `trajectories` keeps the bytes of each lease's trajectory as they stand on the log (a large one's is its claim
    check) until the first revision, `sessions` one small row per session.
    """

    name = "joiner"
    topics: Sequence[str] = ("rollout.sessions", "trajectory.built", "reward.assigned")
    table_names: Sequence[str] = ("sessions", "trajectories")
    by_header: Collection[str] = ()

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._sessions: Table = {}
        self._trajectories: Table = {}
        self.emitted = 0

    def bind(self, tables: dict[str, Table]) -> None:
        """Take the tables of a fresh app."""
        self._sessions, self._trajectories = tables["sessions"], tables["trajectories"]

    def done(self, delivery: Delivery) -> None:
        """Nothing keeps account of that."""

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Nothing runs beside the agent."""
        return ()

    def assigned(self, partitions: Collection[int]) -> None:
        """Nothing depends on which partitions are ours."""

    async def handle(self, delivery: Delivery, raw: bytes) -> None:
        """Apply one fact; publish the session's next revisions when it is complete and says something new."""
        fact = delivery.decode()
        session_id = str(getattr(fact, "session_id", ""))
        if not session_id:
            raise PoisonError("no_session", f"{fact.NAME} names no session")
        key = session_id.encode()
        before = SessionRow.from_bytes(self._sessions.get(key))
        if isinstance(fact, SessionEvent) and fact.type is SessionEventType.FORGOTTEN:
            self._sweep(before, session_id)
            drop(self._sessions, key)
            return
        row = apply(before, fact, delivery.offset)
        if (
            isinstance(fact, Trajectory)
            and not row.revision
            and row.trajectories[fact.lease_id][0].digest == fact.content_digest
        ):
            self._trajectories[_place(session_id, fact.lease_id)] = raw
        if row != before:
            self._sessions[key] = row.to_bytes()
        if row.revision:
            self._sweep(row, session_id)
        news = revisions(row) if is_complete(row) else []
        if not news:
            return
        for view in news:
            trajectory = await self._load(view, session_id)
            scored = score(view, session_id, trajectory, delivery.timestamp_ms)
            await self._bus.publish(scored, headers=headers_of(scored))
            self.emitted += 1
            _log.info(
                "trajectory.scored", session_id=session_id, revision=view.revision, status=row.end and row.end.status
            )
        last = news[-1]
        emitted = replace(SessionRow.from_bytes(self._sessions.get(key)), revision=last.revision, emitted=last.emitted)
        self._sessions[key] = emitted.to_bytes()
        self._sweep(emitted, session_id)

    def _sweep(self, row: SessionRow, session_id: str) -> None:
        """Drop the kept trajectories of an emitted session: a later verdict is rare, and the log still has them."""
        for lease_id in row.trajectories:
            drop(self._trajectories, _place(session_id, lease_id))

    async def _load(self, row: SessionRow, session_id: str) -> Trajectory | None:
        """The winning lease's trajectory in the one revision that the row stands for, if the end expects one."""
        assert row.end is not None
        if not row.end.expects_trajectory:
            return None
        raw = self._trajectories.get(_place(session_id, row.end.winning_lease))
        if row.trajectories[row.end.winning_lease][0].revision != 1:
            raw = None  # the table holds first revisions only
        value = await (self._search(row, session_id) if raw is None else resolve_value(raw, self._bus.blobs))
        record = decode(value)
        assert isinstance(record, Trajectory)
        return record

    async def _search(self, row: SessionRow, session_id: str) -> bytes:
        """Read a known trajectory again from the log: after the first revision, or when a crash cost the table its bytes."""
        assert row.end is not None
        topic = "trajectory.built"
        partition = await self._bus.partition_for(topic, session_id)
        lease_id = row.end.winning_lease
        kept = row.trajectories[lease_id][0]
        start = {(topic, partition): kept.offset}
        async with aclosing(self._bus.tail([topic], start=start, partitions=[partition], until_end=True)) as reader:
            async for delivery in reader:
                record = delivery.decode()
                if isinstance(record, Trajectory) and record.session_id == session_id and record.lease_id == lease_id:
                    return delivery.value
        raise PoisonError(
            "trajectory_missing", f"the trajectory of session {session_id}, lease {lease_id} isn't on the log any more"
        )


def _place(session_id: str, lease_id: str) -> bytes:
    return f"{session_id}|{lease_id}".encode()
