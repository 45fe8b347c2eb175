"""The trainer's side of trajectory.scored: whole groups in, explicit commits out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, Unpack

import structlog

from bus import Bus
from schemas.records import BatchConsumed, TrainerRegistered
from trainer_sink.checkpoint import check_start
from trainer_sink.commits import Commits
from trainer_sink.errors import SinkStateError
from trainer_sink.filters import GroupFilter, Wishes
from trainer_sink.groups import Group, GroupAssembler
from trainer_sink.position import Position
from trainer_sink.ranks import partitions_of
from trainer_sink.reader import TOPIC, OnExpired, ScoredReader, Start
from trainer_sink.registration import Registration
from trainer_sink.versions import TimelineFollower

_log = structlog.get_logger(__name__)

REPORT_AFTER_S: Final = 2.0
"""A trainer that waits for that long reports its skips without a commit: what it waits for may be just their re-run."""
# It becomes part of a topic's name, with room left for a prefix under Kafka's 249 characters.
_TRAINER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,60}")


class GroupConsumer:
    """Yields complete groups of scored trajectories to one trainer, and records what it trained.

    Use it as `async with GroupConsumer(bus, "my-trainer") as groups: async for group in groups: …`, with a started bus.

    * `start`: where to begin without a checkpoint, an end of the log or UTC epoch ms.
    * `partitions` reads a part of the topic (a group is whole within one partition); `rank` and `world_size` do so by a rule, under
      the id `<trainer_id>.rank<n>` (see `trainer_sink.ranks`).
    * `prefetch` groups are read ahead. `until_end` stops at the end of the log as it was at the beginning.
    * `on_expired="count"` goes on where retention has taken records, and counts them; "stop" raises RecordsExpiredError.
    * `max_lag` groups at most are admitted ahead of this trainer (0: as the orchestrator is told), as long as its registration lives:
      `ttl_s` after its last beat. It has to hold the groups of one step.
    * All others: `trainer_sink.filters.Wishes`.

    Iterating is safe to cancel: `asyncio.wait_for(anext(groups), 5)` loses nothing. ValueError for arguments that can't be. Entering
    raises ValueError for partitions that the topic hasn't, CheckpointMismatchError for a checkpoint of another trainer or log, and BusError.
    """

    def __init__(
        self,
        bus: Bus,
        trainer_id: str,
        *,
        start: Start = "earliest",
        partitions: Sequence[int] | None = None,
        rank: int | None = None,
        world_size: int = 1,
        prefetch: int = 2,
        until_end: bool = False,
        on_expired: OnExpired = "stop",
        ttl_s: float = 60.0,
        max_lag: int = 0,
        **wishes: Unpack[Wishes],
    ) -> None:
        if not _TRAINER_ID.fullmatch(trainer_id):
            raise ValueError(f"trainer_id {trainer_id!r} must be 1 to 60 letters, digits, dots, dashes or underscores")
        if rank is not None and partitions is not None:
            raise ValueError("partitions and rank both say what to read: give one of them")
        if rank is None and world_size != 1:
            raise ValueError(f"world_size is {world_size} and there is no rank: every rank would read all groups")
        check_start(start)
        if on_expired not in ("stop", "count"):
            raise ValueError(f"on_expired must be 'stop' or 'count', not {on_expired!r}")
        if not ttl_s > 0 or max_lag < 0:
            raise ValueError(f"ttl_s must be above 0 and max_lag 0 or more, not {ttl_s} and {max_lag}")
        self.trainer_id = trainer_id if rank is None else f"{trainer_id}.rank{rank}"
        self.filter = GroupFilter.of(**wishes)
        self._bus = bus
        self._wanted = partitions
        self._rank = None if rank is None else (rank, world_size)
        self._prefetch = max(1, prefetch)
        self._ttl_s = ttl_s
        self._max_lag = max_lag
        self._assembler = GroupAssembler(self.trainer_id, self.filter)
        self._reader = ScoredReader(bus, self.trainer_id, self._assembler, until_end=until_end, on_expired=on_expired)
        self._commits = Commits(bus, self.trainer_id, self.filter.policy_id or "", self._assembler)
        self._position = Position(self.trainer_id, start, self._assembler, self._reader, self._commits)
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._is_at_end = False

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._tasks:
            raise SinkStateError("this consumer is in use already: make another one")
        ends = await self._bus.end_offsets(TOPIC)
        numbers = self._numbers(len(ends))
        await self._position.settle(self._bus, ends, numbers)
        follower = None
        if self.filter.policy_id is not None or self.filter.max_policy_lag is not None:
            follower = TimelineFollower(self._bus, self._assembler.versions, self.filter.policy_id)
            await follower.catch_up()
        registration = Registration(self._bus, self._registration(numbers, is_all=len(numbers) == len(ends)))
        await registration.publish()
        if self._commits.last is not None:
            await self._bus.publish(self._commits.last)
        work = {"read": self._pump(numbers), "beat": registration.beat()}
        if follower is not None:
            work["timeline"] = follower.run()
        self._tasks = [asyncio.create_task(c, name=f"sink-{self.trainer_id}-{name}") for name, c in work.items()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._failure = self._failure or SinkStateError("the consumer is closed")

    def _numbers(self, count: int) -> frozenset[int]:
        if self._rank is not None:
            return frozenset(partitions_of(*self._rank, count))
        numbers = frozenset(range(count) if self._wanted is None else self._wanted)
        if missing := sorted(numbers - set(range(count))):
            raise ValueError(f"{TOPIC} has no partitions {missing}: it has 0 … {count - 1}")
        return numbers

    def _registration(self, numbers: frozenset[int], *, is_all: bool) -> TrainerRegistered:
        return TrainerRegistered(
            trainer_id=self.trainer_id,
            policy_id=self.filter.policy_id or "",
            filter=self.filter.to_json(),
            start="checkpoint" if self._position.is_restored else self._position.start,
            ttl_s=self._ttl_s,
            partitions=[] if is_all else sorted(numbers),
            max_lag=self._max_lag,
        )

    async def _pump(self, numbers: frozenset[int]) -> None:
        try:
            async for _ in self._reader.read(self._position.start, numbers):
                if not self._assembler.ready:
                    continue
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

    # -- groups ------------------------------------------------------------------------------------------------------

    @property
    def policy_version(self) -> str:
        """The version of the weights that the trainer has now, by which lags are counted; '' goes by the timeline's newest."""
        return self._assembler.versions.own

    @policy_version.setter
    def policy_version(self, version: str) -> None:
        self._assembler.versions.own = version

    @property
    def current_version(self) -> str:
        """The version by which lags are counted now; '' while none is known. The timeline counts for consumers of one policy."""
        return self.policy_version or self._assembler.versions.order(self.filter.policy_id or "").newest

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        """The next complete group; raises what stopped the reader, once the groups before it are out."""
        if not self._tasks:
            raise SinkStateError("use the consumer as `async with GroupConsumer(…) as groups`")
        while True:
            try:
                async with asyncio.timeout(REPORT_AFTER_S) as waiting:
                    return await self._next()
            except TimeoutError:
                if not waiting.expired():  # what stopped the reader may itself be a TimeoutError
                    raise
                await self._commits.report_skips()

    async def _next(self) -> Group:
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

    @property
    def taken(self) -> tuple[str, ...]:
        """The ids of the groups that were yielded and are neither committed nor skipped, in that order."""
        return self._assembler.yielded

    def skip(self, group: Group, reason: str) -> None:
        """Give up a yielded group instead of training it; the next commit reports it under this reason.

        KeyError for a group that isn't out, ValueError without a reason, SinkStateError for one that is being committed just now.
        """
        if not reason:
            raise ValueError("a skipped group needs a reason: nothing is dropped in silence")
        if group.group_id in self._commits.committing:
            raise SinkStateError(f"group {group.group_id} is being committed: it was trained, so it can't be skipped")
        self._assembler.skip(group.group_id, reason)

    async def commit(
        self,
        step: int,
        *,
        groups: Iterable[Group | str] | None = None,
        policy_version: str = "",
        staleness_max: float | None = None,
        staleness_mean: float | None = None,
        details: Mapping[str, Any] | None = None,
        save: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    ) -> BatchConsumed:
        """Record that step `step` trained these groups, or the groups of these ids (default: all of `taken`).

        Publishes one BatchConsumed, with the skips since the last one, and returns it. When publishing fails nothing
        is recorded: commit again with the same step. Steps only grow; KeyError for a group that isn't out. The staleness of the
        trained tokens, as it was when the groups were handed out, is reckoned here unless it is given.

        `save` is awaited before that, with what `state_dict` will say afterwards: a trainer that keeps it beside its
        weights there never says of a step that it was trained and then, after a crash, trains other groups in it.
        """
        keep = None if save is None else lambda batch: save(self._position.state_after(batch))
        return await self._commits.commit(
            step,
            None if groups is None else [g if isinstance(g, str) else g.group_id for g in groups],
            details=details or {},
            save=keep,
            staleness_max=staleness_max,
            staleness_mean=staleness_mean,
            policy_version=policy_version or self.policy_version,
        )

    # -- position ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position after the last commit, as plain values: save it with the weights of the same step."""
        return self._position.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; call it before `async with`.

        Raises CheckpointMismatchError for something else than a checkpoint, SinkStateError when it comes too late or twice; a checkpoint
        of another trainer or log is refused by `async with`.
        """
        if self._tasks:
            raise SinkStateError("load a checkpoint once, before the consumer is entered")
        self._position.restore(state)

    @property
    def last_step(self) -> int:
        """The step of the last commit, also of the one that a checkpoint holds; 0 before the first."""
        return self._commits.last_step

    @property
    def counts(self) -> Mapping[str, int]:
        """What became of every record that was read, by name; see `trainer_sink.groups`."""
        return dict(self._assembler.counts)

    @property
    def side_calls(self) -> Mapping[str, int]:
        """Traces of side calls in the groups that were handed out: `kept` or `dropped`."""
        return dict(self._assembler.side_calls)

    @property
    def open_groups(self) -> int:
        """Groups that wait for sessions."""
        return self._assembler.open
