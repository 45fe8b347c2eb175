"""A fleet without workers: admitted groups get their results at once, as the joiner would publish them, under the weights of the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from bus import Bus
from schemas import arrays, ids
from schemas.records import (
    Counts,
    GroupEvent,
    GroupEventType,
    PolicyEvent,
    PolicyEventType,
    ScoredTrajectory,
    SessionSpec,
    Status,
    TaskRequest,
    Trace,
    Trajectory,
    TurnSpan,
    VersionSpan,
)
from stream_processors.joiner.core import headers_of

POLICY = "default"
TOKENS = 8


@dataclass(slots=True)
class Fleet:
    """Follows rollout.groups. `holds` keeps the results of tasks back until they are let go."""

    bus: Bus
    version: str = "0"
    tasks: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    admitted: list[GroupEvent] = field(default_factory=list)
    requeued: list[GroupEvent] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @classmethod
    @asynccontextmanager
    async def running(cls, bus: Bus) -> AsyncIterator[Self]:
        """At work for the block."""
        fleet = cls(bus)
        work = asyncio.create_task(fleet._run(), name="fleet")
        try:
            yield fleet
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def submit(self, task_id: str, *, samples: int = 2, max_requeues: int = 1, **metadata: Any) -> str:
        """Submit a task; its first group's id."""
        spec = {
            "instruction": "do it",
            "harness": {"name": "shell"},
            "num_samples": samples,
            "max_requeues": max_requeues,
            "metadata": metadata,
        }
        await self.bus.publish(
            TaskRequest(task_id=task_id, policy_id=POLICY, harness="shell", num_samples=samples, spec=spec)
        )
        return ids.group_id(task_id)

    async def publish_weights(self, version: str) -> None:
        """New weights, from now on sampled from and on the timeline."""
        self.version = version
        await self.bus.publish(PolicyEvent(policy_id=POLICY, type=PolicyEventType.PUBLISHED, version=version, at=1))

    def admitted_tasks(self, prefix: str = "") -> list[str]:
        """The tasks of admitted groups, first runs only."""
        return sorted(e.task_id for e in self.admitted if e.task_id.startswith(prefix) and not e.requeue_of)

    async def until(self, condition: Any, within_s: float = 60.0) -> None:
        """Wait until something holds of what was admitted, re-queued and closed."""
        async with asyncio.timeout(within_s), self._moved:
            await self._moved.wait_for(condition)

    async def _run(self) -> None:
        async for delivery in self.bus.tail(["rollout.groups"], start="earliest"):
            event = delivery.decode()
            if not isinstance(event, GroupEvent):
                continue
            if event.type is GroupEventType.REGISTERED:
                self.tasks[event.group_id] = event.task
            elif event.type is GroupEventType.ADMITTED:
                self.admitted.append(event)
                await self._play(event)
            elif event.type is GroupEventType.REQUEUED:
                self.requeued.append(event)
            elif event.type is GroupEventType.CLOSED:
                self.closed.add(event.group_id)
            async with self._moved:
                self._moved.notify_all()

    async def _play(self, event: GroupEvent) -> None:
        for index in range(event.size):
            one = result(event, index, self.version, self.tasks[event.group_id].get("metadata") or {})
            await self.bus.publish(one, headers=headers_of(one))


def result(event: GroupEvent, index: int, version: str, metadata: Mapping[str, Any]) -> ScoredTrajectory:
    """What a session of a group gives."""
    session_id = ids.session_id(event.group_id, index)
    trace = Trace(
        prompt_ids=arrays.pack_ids(range(4)),
        response_ids=arrays.pack_ids(range(TOKENS)),
        loss_mask=arrays.pack_mask([1] * TOKENS),
        logprobs=arrays.pack_logprobs([-0.5] * TOKENS),
        turns=[
            TurnSpan(
                start=0, end=TOKENS, is_trained=True, version_spans=[VersionSpan(version=version, start=0, end=TOKENS)]
            )
        ],
    )
    names: dict[str, Any] = {
        "session_id": session_id,
        "group_id": event.group_id,
        "task_id": event.task_id,
        "policy_id": POLICY,
    }
    spec = SessionSpec(
        task_id=event.task_id,
        group_id=event.group_id,
        index=index,
        group_size=event.size,
        policy_id=POLICY,
        harness="shell",
        requeue_of=event.requeue_of,
        for_trainer=event.for_trainer,
        metadata=dict(metadata),
    )
    trajectory_id = ids.trajectory_id(session_id, "", "prefix_merging")
    counts = Counts(calls=1, trained=1, traces=1, sampled_tokens=TOKENS, trainable_tokens=TOKENS)
    trajectory = Trajectory(trajectory_id=trajectory_id, traces=[trace], counts=counts, **names)
    return ScoredTrajectory(
        trajectory_id=trajectory_id,
        status=Status.COMPLETED,
        reward=float(index % 2),
        trajectory=trajectory,
        spec=spec,
        content_digest="1",
        **names,
    )
