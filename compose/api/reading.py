"""What isn't held in memory: facts and scored trajectories, read from the log where the rows say that they stand."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from bus import Bus
from compose.api.problems import not_now
from compose.api.rows import SessionRow
from compose.records_json import as_json
from schemas.records import ScoredTrajectory, SessionEvent, Trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Arrays = Literal["list", "base64"]

READERS: Final = 2
"""Reads of trajectories that go on at once: each may hold a page in memory."""

TURN_WITHIN_S: Final = 20.0
"""How long a read waits for its turn."""

_ARRAYS: Final = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
_CHUNK: Final = 8


class LogReading:
    """Reads by place; a few at a time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._turns = asyncio.Semaphore(READERS)

    async def facts(self, row: SessionRow) -> list[SessionEvent]:
        """A session's facts, in order, as far as the log still has them."""
        if not row.facts:
            return []
        async with self._turn():
            deliveries = await self._bus.at("rollout.sessions", row.fact_partition, list(row.facts))
        records = (delivery.decode() for delivery in deliveries)
        return [r for r in records if isinstance(r, SessionEvent)]

    async def scored(self, rows: Iterable[SessionRow], *, up_to_bytes: int | None = None) -> list[ScoredTrajectory]:
        """The newest results of these sessions, in their order, as far as the log still has them.

        Ends before the encoded results are larger than `up_to_bytes`, but never before the first one.
        """
        wanted = [row for row in rows if row.result is not None]
        found: list[ScoredTrajectory] = []
        left = up_to_bytes
        async with self._turn():
            for start in range(0, len(wanted), _CHUNK):
                for record, size in await self._chunk(wanted[start : start + _CHUNK]):
                    if left is not None:
                        if found and size > left:
                            return found
                        left -= size
                    found.append(record)
        return found

    async def _chunk(self, rows: list[SessionRow]) -> list[tuple[ScoredTrajectory, int]]:
        places: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            assert row.result is not None
            places[row.result.partition].append(row.result.offset)
        by_session: dict[str, tuple[ScoredTrajectory, int]] = {}
        for partition, offsets in places.items():
            for delivery in await self._bus.at("trajectory.scored", partition, offsets):
                record = delivery.decode()
                if isinstance(record, ScoredTrajectory):
                    by_session[record.session_id] = (record, len(delivery.value))
        return [by_session[row.session_id] for row in rows if row.session_id in by_session]

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(TURN_WITHIN_S):
                await self._turns.acquire()
        except TimeoutError as late:
            raise not_now("too many trajectories are being read", hint="ask for smaller pages, or later") from late
        try:
            yield
        finally:
            self._turns.release()


def result_json(scored: ScoredTrajectory) -> dict[str, Any]:
    """A result without its tokens, as `models.SessionResult`."""
    trajectory = scored.trajectory
    return {
        "session_id": scored.session_id,
        "task_id": scored.task_id,
        "group_id": scored.group_id,
        "index": scored.spec.index if scored.spec else 0,
        "trajectory_id": scored.trajectory_id,
        "revision": scored.revision,
        "status": str(scored.status),
        "boundary": str(scored.boundary),
        "error": scored.error,
        "reward": scored.reward,
        "rewards": [{name: getattr(reward, name) for name in _REWARD_FIELDS} for reward in scored.rewards],
        "counts": as_json(trajectory.counts) if trajectory is not None else None,
        "ended_at": scored.ended_at,
        "scored_at": scored.scored_at,
    }


_REWARD_FIELDS: Final = ("name", "value", "trace_rewards", "grader", "grader_version", "provenance")


def trajectory_json(scored: ScoredTrajectory, arrays: Arrays) -> dict[str, Any]:
    """A result with its tokens, as `models.Trajectory`."""
    trajectory = scored.trajectory
    traces = trajectory.traces if trajectory is not None else []
    return {
        **result_json(scored),
        "lease_id": scored.lease_id,
        "attempt": scored.attempt,
        "policy_id": scored.policy_id,
        "builder": trajectory.builder if trajectory is not None else "",
        "tokenizer_digest": scored.tokenizer_digest,
        "logprobs_mode": scored.logprobs_mode,
        "metadata": scored.spec.metadata if scored.spec else {},
        "traces": [_trace_json(trace, arrays) for trace in traces],
    }


def _trace_json(trace: Trace, arrays: Arrays) -> dict[str, Any]:
    whole = as_json(trace)
    if arrays == "base64":
        whole |= {name: base64.b64encode(getattr(trace, name)).decode() for name in _ARRAYS}
    return whole
