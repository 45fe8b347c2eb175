"""Tasks on their way to the log: durable before they count as submitted, and one specification for each task id."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bus import BlobMissingError, Bus, Position, Start
from bus.claims import resolve
from compose.api.projection import Projection, digest_of
from compose.errors import CommandError, ExitCode, usage
from schemas import MalformedRecordError, UnknownSchemaIdError, ids
from schemas.records import GroupEvent, TaskRequest

TOGETHER: Final = 200
"""Tasks that are on their way to the broker at a time."""


class TaskIdTakenError(CommandError):
    """A task id that stands for another specification already."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"task {task_id!r} exists with another specification",
            hint="give it an id of its own, or none; the same specification would be the same task",
            code=ExitCode.USAGE,
        )


class TaskView(Protocol):
    """What is known of the tasks on the log."""

    @property
    def rows(self) -> Projection:
        """The tasks that are known."""

    async def wait_past(self, position: Position) -> None:
        """Returns once `rows` holds what was published there, and what stands before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A task as it stands on the log: the first command under its id. `is_new`: this submission published one."""

    request: TaskRequest
    is_new: bool


def digests_of(requests: Sequence[TaskRequest], places: Sequence[str] = ()) -> dict[str, str]:
    """The digest of each task id's specification; `places` name the requests in errors.

    Raises:
        CommandError: one id stands for two specifications.
    """
    digests: dict[str, str] = {}
    for request, place in zip(requests, places or [""] * len(requests), strict=True):
        digest = digest_of(request.spec)
        if digests.setdefault(request.task_id, digest) != digest:
            raise usage(f"{place}task_id: {request.task_id!r} stands here twice, for different tasks")
    return digests


async def take(
    bus: Bus,
    view: TaskView,
    requests: Sequence[TaskRequest],
    digests: Mapping[str, str],
    *,
    deadline_s: float | None = None,
) -> list[Taken]:
    """Publish the tasks whose ids are free; what stands on the log for each one.

    All ids are compared before the first task is published. An id that the same specification has is the same task.

    Raises:
        TaskIdTakenError: another specification has one of the ids.
        BusUnavailableError, MalformedRecordError: as `Bus.publish`.
    """
    _compare(view, digests)
    new = {r.task_id: r for r in requests if view.rows.known_digest(r.task_id) is None}
    waiting = list(new.values())
    for start in range(0, len(waiting), TOGETHER):
        some = waiting[start : start + TOGETHER]
        for position in await asyncio.gather(*(bus.publish(r, deadline_s=deadline_s) for r in some)):
            await view.wait_past(position)
    _compare(view, digests)  # two submissions may have met: the log's first one counts
    return [Taken(request=_as_stands(view, r), is_new=r.task_id in new) for r in requests]


def _compare(view: TaskView, digests: Mapping[str, str]) -> None:
    for task_id, digest in digests.items():
        if view.rows.known_digest(task_id) not in (None, digest):
            raise TaskIdTakenError(task_id)


def _as_stands(view: TaskView, request: TaskRequest) -> TaskRequest:
    row = view.rows.tasks.get(request.task_id)
    if row is None or not row.submitted_at:
        return request
    return TaskRequest(
        task_id=request.task_id,
        policy_id=row.policy_id or request.policy_id,
        harness=row.harness or request.harness,
        num_samples=row.num_samples or request.num_samples,
        submitted_at=row.submitted_at,
    )


class LoggedTasks:
    """What the log has of some task ids, for a command that asks once: a TaskView without following anything."""

    def __init__(self, bus: Bus, task_ids: Iterable[str]) -> None:
        self.rows = Projection(max_sessions=sys.maxsize)
        self._bus = bus
        self._ids = frozenset(task_ids)
        self._ends: dict[tuple[str, int], int] = {}

    async def read(self) -> None:
        """Read where the ids' commands stand, and, for those that have expired, their groups."""
        await self._read("rollout.tasks", self._ids)
        left = [task_id for task_id in self._ids if self.rows.known_digest(task_id) is None]
        await self._read("rollout.groups", map(ids.group_id, left))

    async def wait_past(self, position: Position) -> None:
        """See TaskView; of an id that wasn't asked for nothing is read."""
        place = (position.topic, position.partition)
        if place in self._ends and position.offset >= self._ends[place]:
            await self._read(position.topic, self._ids, only=position.partition)

    async def _read(self, topic: str, names: Iterable[str], *, only: int | None = None) -> None:
        places = {name.encode(): await self._bus.partition_for(topic, name) for name in names}
        partitions = {n for n in places.values() if only in (None, n)}
        if not partitions:
            return
        start: Start = "earliest" if only is None else {(topic, only): self._ends[topic, only]}
        ends = await self._bus.end_offsets(topic)
        tail = self._bus.tail([topic], start=start, partitions=sorted(partitions), until_end=True, resolved=False)
        async for delivery in tail:
            if delivery.key in places and not delivery.is_tombstone:
                try:
                    record = (await resolve(delivery, self._bus.blobs)).decode()
                except (MalformedRecordError, UnknownSchemaIdError, BlobMissingError):
                    continue  # no task that anybody could run
                if isinstance(record, TaskRequest | GroupEvent):
                    self.rows.take(record, delivery.partition, delivery.offset)
        self._ends.update({(topic, n): ends[n] for n in partitions})
