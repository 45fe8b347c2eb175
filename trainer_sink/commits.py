"""What a trainer publishes of its work: a BatchConsumed per step, and between steps what it skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import structlog

from bus import Bus
from bus.errors import BusError
from schemas.records import BatchConsumed, PartitionOffset, SkippedGroup
from trainer_sink.errors import SinkStateError
from trainer_sink.groups import GroupAssembler
from trainer_sink.registration import now_ms

_log = structlog.get_logger(__name__)

Save = Callable[[BatchConsumed], Awaitable[None]]


class Commits:
    """The commits of one consumer, one at a time. `last` is the last step's, also that of a checkpoint."""

    def __init__(self, bus: Bus, trainer_id: str, policy_id: str, assembler: GroupAssembler) -> None:
        self.last: BatchConsumed | None = None
        self.committing: frozenset[str] = frozenset()
        """Groups of the commit that is under way; empty between commits."""
        self._bus = bus
        self._trainer_id = trainer_id
        self._policy_id = policy_id
        self._assembler = assembler
        self._lock = asyncio.Lock()

    @property
    def last_step(self) -> int:
        """0 before the first."""
        return self.last.step if self.last is not None else 0

    async def commit(
        self,
        step: int,
        group_ids: Iterable[str] | None,
        *,
        details: Mapping[str, Any],
        save: Save | None,
        staleness_max: float | None,
        staleness_mean: float | None,
        policy_version: str,
    ) -> BatchConsumed:
        """Publish a step's groups and the skips since the last one; `save` is awaited before. See `GroupConsumer.commit`."""
        async with self._lock:
            if self.last is not None and step <= self.last.step:
                raise SinkStateError(f"step {step} isn't after step {self.last.step}, which is committed already")
            ids = list(self._assembler.yielded if group_ids is None else dict.fromkeys(group_ids))
            if strangers := set(ids) - set(self._assembler.yielded):
                raise KeyError(f"groups {sorted(strangers)} aren't out: committed, skipped or never yielded here")
            staleness = self._assembler.staleness(ids)
            batch = self._batch(
                step,
                ids,
                details,
                policy_version=policy_version,
                staleness_max=staleness.max if staleness_max is None else staleness_max,
                staleness_mean=staleness.mean if staleness_mean is None else staleness_mean,
            )
            self.committing = frozenset(ids)
            try:
                if save is not None:
                    await save(batch)
                await self._bus.publish(batch)
            finally:
                self.committing = frozenset()
            self._assembler.trained(ids)
            self._assembler.reported(s.group_id for s in batch.skipped)
            self.last = batch
            return batch

    async def report_skips(self) -> None:
        """Tell the skips that no commit has told; an outage leaves them to the next report."""
        async with self._lock:
            if not self._assembler.skipped:
                return
            batch = self._batch(self.last_step, [], {}, is_interim=True)
            try:
                await self._bus.publish(batch)
            except BusError as error:
                _log.warning("report.failed", trainer_id=self._trainer_id, error=repr(error))
                return
            self._assembler.reported(s.group_id for s in batch.skipped)

    def _batch(self, step: int, ids: list[str], details: Mapping[str, Any], **fields: Any) -> BatchConsumed:
        marks = self._assembler.watermarks(without=ids)
        counts = {"counts": dict(self._assembler.counts)}
        if side_calls := dict(self._assembler.side_calls):
            counts["side_calls"] = side_calls
        return BatchConsumed(
            trainer_id=self._trainer_id,
            step=step,
            policy_id=self._policy_id,
            groups=ids,
            skipped=[SkippedGroup(group_id=g, reason=why) for g, why in self._assembler.skipped.items()],
            offsets=[PartitionOffset(partition=n, offset=mark) for n, mark in sorted(marks.items())],
            details={**details, **counts},
            at=now_ms(),
            **fields,
        )
