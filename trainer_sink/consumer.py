"""The trainer's side of trajectory.scored: whole groups in, explicit commits out."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, cast

import structlog

from bus import Bus
from bus.errors import BusError
from schemas.records import BatchConsumed, PartitionOffset, SkippedGroup, TrainerRegistered
from trainer_sink.checkpoint import Checkpoint
from trainer_sink.errors import SinkStateError
from trainer_sink.filters import GroupFilter
from trainer_sink.groups import Finished, Group, GroupAssembler
from trainer_sink.reader import OnExpired, ScoredReader, Start

_log = structlog.get_logger(__name__)

TOPIC: Final = "trajectory.scored"
# It becomes part of a topic's name, with room left for a prefix under Kafka's 249 characters.
_TRAINER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,60}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class GroupConsumer:
    """Yields complete groups of scored trajectories to one trainer, and records what it trained.

    Use it as `async with GroupConsumer(bus, "my-trainer") as groups: async for group in groups: …`, with a started bus.
    `start` is where to begin without a checkpoint: an end of the log or UTC epoch ms. `partitions` reads a part of the
    topic (a group is whole within one partition). `prefetch` groups are read ahead. `until_end` stops at the end of
    the log as it was at the beginning. `on_expired="count"` goes on where retention has taken records, and counts
    them; "stop" raises RecordsExpiredError. At most `max_lag` groups are admitted ahead of this trainer (0: as the orchestrator
    is told), as long as its registration lives: `ttl_s` after its last beat. The filter's arguments are those of `GroupFilter.of`.

    Iterating is safe to cancel: `asyncio.wait_for(anext(groups), 5)` loses nothing.
    """

    def __init__(
        self,
        bus: Bus,
        trainer_id: str,
        *,
        policy_id: str | None = None,
        task_ids: Iterable[str] | None = None,
        harness: Iterable[str] | str | None = None,
        tokenizer_digest: str | None = None,
        allow_off_context: bool = False,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        prefetch: int = 2,
        until_end: bool = False,
        on_expired: OnExpired = "stop",
        ttl_s: float = 60.0,
        max_lag: int = 0,
    ) -> None:
        if not _TRAINER_ID.fullmatch(trainer_id):
            raise ValueError(f"trainer_id {trainer_id!r} must be 1 to 60 letters, digits, dots, dashes or underscores")
        self.trainer_id = trainer_id
        self.filter = GroupFilter.of(
            policy_id=policy_id,
            task_ids=task_ids,
            harness=harness,
            tokenizer_digest=tokenizer_digest,
            allow_off_context=allow_off_context,
        )
        self._bus = bus
        self._start: Start = start
        self._wanted = partitions
        self._prefetch = max(1, prefetch)
        self._ttl_s = ttl_s
        self._max_lag = max_lag
        self._started_at = 0
        self._assembler = GroupAssembler(trainer_id, self.filter)
        self._reader = ScoredReader(bus, trainer_id, self._assembler, until_end=until_end, on_expired=on_expired)
        self._checkpoint: Checkpoint | None = None
        self._partition_count = 0
        self._last_batch: BatchConsumed | None = None
        self._committing = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._is_at_end = False

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._tasks:
            raise SinkStateError("this consumer is in use already: make another one")
        ends = await self._bus.end_offsets(TOPIC)
        numbers = frozenset(ends if self._wanted is None else self._wanted)
        if missing := sorted(numbers - ends.keys()):
            raise ValueError(f"{TOPIC} has no partitions {missing}: it has 0 … {len(ends) - 1}")
        self._partition_count = len(ends)
        if self._checkpoint is not None:
            self._checkpoint.check(trainer_id=self.trainer_id, topic=TOPIC, ends=ends, partitions=numbers)
        elif self._start == "latest":
            # Fixed now, so that a checkpoint taken before the first record doesn't mean a later "latest".
            self._assembler.restore({n: ends[n] for n in numbers}, {}, {})
        self._started_at = _now_ms()
        await self._register()
        if self._last_batch is not None:
            await self._bus.publish(self._last_batch)
        self._tasks = [
            asyncio.create_task(self._pump(numbers), name=f"sink-{self.trainer_id}-read"),
            asyncio.create_task(self._beat(), name=f"sink-{self.trainer_id}-beat"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._failure = self._failure or SinkStateError("the consumer is closed")

    async def _pump(self, numbers: frozenset[int]) -> None:
        try:
            async for _ in self._reader.read(self._start, numbers):
                async with self._changed:
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda: self._assembler.ready < self._prefetch)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the reader's boundary: the trainer gets it from its next `anext`
            _log.error("sink.stopped", trainer_id=self.trainer_id, error=repr(error))
            self._failure = error
        self._is_at_end = self._failure is None
        async with self._changed:
            self._changed.notify_all()

    async def _register(self) -> None:
        start = self._start if self._checkpoint is None else "checkpoint"
        await self._bus.publish(
            TrainerRegistered(
                trainer_id=self.trainer_id,
                policy_id=self.filter.policy_id or "",
                filter=self.filter.to_json(),
                start=start,
                ttl_s=self._ttl_s,
                at=_now_ms(),
                started_at=self._started_at,
                partitions=[] if self._wanted is None else sorted(self._wanted),
                max_lag=self._max_lag,
            )
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / 3)  # two beats may be lost before anybody thinks the trainer is gone
            try:
                await self._register()
            except BusError as error:
                _log.warning("heartbeat.failed", trainer_id=self.trainer_id, error=repr(error))

    # -- groups ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        """The next complete group; raises what stopped the reader, once the groups before it are out."""
        if not self._tasks:
            raise SinkStateError("use the consumer as `async with GroupConsumer(…) as groups`")
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._assembler.ready or self._failure or self._is_at_end)
                group = self._assembler.take()
                self._changed.notify_all()
                if group is not None:
                    return group
                if self._failure is not None:
                    raise self._failure
                if self._is_at_end:
                    raise StopAsyncIteration

    def skip(self, group: Group, reason: str) -> None:
        """Give up a yielded group instead of training it; the next commit reports it under this reason."""
        if not reason:
            raise ValueError("a skipped group needs a reason: nothing is dropped in silence")
        self._assembler.skip(group.group_id, reason)

    async def commit(
        self,
        step: int,
        *,
        groups: Iterable[Group] | None = None,
        policy_version: str = "",
        staleness_max: float = 0.0,
        staleness_mean: float = 0.0,
        details: Mapping[str, Any] | None = None,
        save: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    ) -> BatchConsumed:
        """Record that step `step` trained these groups (default: all that were yielded since the last commit).

        Publishes one BatchConsumed, with the skips since the last one, and returns it. When publishing fails nothing
        is recorded: commit again with the same step. Steps only grow; KeyError for a group that isn't out.

        `save` is awaited before that, with what `state_dict` will say afterwards: a trainer that keeps it beside its
        weights there never says of a step that it was trained and then, after a crash, trains other groups in it.
        """
        async with self._committing:
            if self._last_batch is not None and step <= self._last_batch.step:
                raise SinkStateError(
                    f"step {step} isn't after step {self._last_batch.step}, which is committed already"
                )
            ids = list(self._assembler.yielded) if groups is None else [g.group_id for g in groups]
            if strangers := set(ids) - set(self._assembler.yielded):
                raise KeyError(f"groups {sorted(strangers)} aren't out: committed, skipped or never yielded here")
            skipped = self._assembler.skipped
            marks = self._assembler.watermarks(without=ids)
            batch = BatchConsumed(
                trainer_id=self.trainer_id,
                step=step,
                policy_id=self.filter.policy_id or "",
                policy_version=policy_version,
                groups=ids,
                skipped=[SkippedGroup(group_id=g, reason=why) for g, why in skipped.items()],
                offsets=[PartitionOffset(partition=n, offset=mark) for n, mark in sorted(marks.items())],
                staleness_max=staleness_max,
                staleness_mean=staleness_mean,
                details={**(details or {}), "counts": dict(self.counts)},
                at=_now_ms(),
            )
            if save is not None:
                finished = self._assembler.finished(also=ids)
                await save(self._state(marks, finished, skipped={}, last_batch=batch))
            await self._bus.publish(batch)
            self._assembler.trained(ids)
            self._assembler.reported(skipped)
            self._last_batch = batch
            return batch

    # -- position ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position after the last commit, as plain values: save it with the weights of the same step."""
        return self._state(
            self._assembler.watermarks(),
            self._assembler.finished(),
            skipped=self._assembler.skipped,
            last_batch=self._last_batch,
        )

    def _state(
        self,
        watermarks: Mapping[int, int],
        finished: Mapping[int, Mapping[str, Finished]],
        *,
        skipped: Mapping[str, str],
        last_batch: BatchConsumed | None,
    ) -> dict[str, Any]:
        return Checkpoint(
            trainer_id=self.trainer_id,
            topic=TOPIC,
            partition_count=self._partition_count or (self._checkpoint.partition_count if self._checkpoint else 0),
            start=self._start,
            watermarks=watermarks,
            finished=finished,
            skipped=skipped,
            last_batch=last_batch,
        ).to_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; call it before `async with`.

        Raises CheckpointMismatchError for something else than a checkpoint; one of another trainer or log is refused
        by `async with`.
        """
        if self._tasks or self._checkpoint is not None:
            raise SinkStateError("load a checkpoint once, before the consumer is entered")
        checkpoint = Checkpoint.from_state(state)
        self._checkpoint = checkpoint
        self._start = cast("Start", checkpoint.start)  # `state_dict` wrote it
        self._last_batch = checkpoint.last_batch
        self._assembler.restore(checkpoint.watermarks, checkpoint.finished, checkpoint.skipped)

    @property
    def counts(self) -> Mapping[str, int]:
        """What became of every record that was read, by name; see `trainer_sink.groups`."""
        return dict(self._assembler.counts)

    @property
    def open_groups(self) -> int:
        """Groups that wait for sessions."""
        return self._assembler.open
