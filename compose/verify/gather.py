"""What a check needs from the log or an archive: the newest revision of each trajectory, and how its calls were sampled."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from bus import Delivery, is_retriable
from bus.protocol import LogReader
from schemas.records import CompletionRecord, Record, ScoredTrajectory, Trajectory


@dataclass(slots=True)
class Found:
    """Where the newest trajectories stand, the versions of their trained tokens, and each call's effective sampling."""

    places: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, offset) → trajectory id."""
    versions: set[str] = field(default_factory=set)
    sampling: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    unreadable: int = 0


async def find(log: LogReader, topic: str, session_id: str | None) -> Found:
    """Look through a topic of trajectories and through the calls, of one session or of all."""
    found = Found()
    newest: dict[str, tuple[int, tuple[int, int], set[str]]] = {}
    async for delivery, record in _records(log, topic, session_id, found):
        trajectory = _trajectory(record)
        if trajectory is None:
            continue
        revision = record.revision if isinstance(record, ScoredTrajectory) else trajectory.revision
        known = newest.get(trajectory.trajectory_id)
        if known is None or known[0] < revision:
            place = (delivery.partition, delivery.offset)
            newest[trajectory.trajectory_id] = (revision, place, _versions(trajectory))
    for trajectory_id, (_, place, versions) in newest.items():
        found.places[place] = trajectory_id
        found.versions |= versions
    async for _, record in _records(log, "capture.completions", session_id, found):
        if isinstance(record, CompletionRecord) and isinstance(record.sampling_effective, dict):
            temperature = record.sampling_effective.get("temperature")
            found.sampling.setdefault(record.completion_id, {"temperature": temperature})
    return found


async def trajectories(log: LogReader, topic: str, found: Found) -> AsyncGenerator[Trajectory, None]:
    """The trajectories that were found, one after another."""
    async for delivery, record in _records(log, topic, None, found):
        if (delivery.partition, delivery.offset) in found.places and (one := _trajectory(record)) is not None:
            yield one


async def _records(
    log: LogReader, topic: str, session_id: str | None, found: Found
) -> AsyncGenerator[tuple[Delivery, Record], None]:
    async with aclosing(log.tail([topic], start="earliest", until_end=True)) as deliveries:
        async for delivery in deliveries:
            if delivery.is_tombstone or (
                session_id is not None and delivery.headers.get("session_id", b"").decode() != session_id
            ):
                continue
            try:
                record = delivery.decode()
            except Exception as error:  # the record's boundary: a check counts poison, consumers set it aside
                if is_retriable(error):
                    raise
                found.unreadable += 1
                continue
            yield delivery, record


def _trajectory(record: Record) -> Trajectory | None:
    if isinstance(record, ScoredTrajectory):
        return record.trajectory
    return record if isinstance(record, Trajectory) else None


def _versions(trajectory: Trajectory) -> set[str]:
    turns = [turn for trace in trajectory.traces for turn in trace.turns if turn.is_trained]
    unnamed = {"" for turn in turns if not turn.version_spans}
    return unnamed | {span.version for turn in turns for span in turn.version_spans}
