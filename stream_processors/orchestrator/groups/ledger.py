"""How far each trainer is behind what was admitted: the admitted groups and what trainers say that they consumed.

A view in memory, made by reading rollout.groups and trainer.consumed; the two have no order between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from schemas.records import BatchConsumed, GroupEvent, TrainerRegistered
from schemas.records import GroupEventType as Fact
from schemas.topics import DAY_MS
from schemas.wishes import GroupWish, is_for

CHECKPOINT: Final = "checkpoint"
KEEP_MS: Final = 14 * DAY_MS
"""Groups admitted longer ago than the retention of trajectory.scored are nothing that a trainer could still read."""


@dataclass(slots=True)
class Admitted:
    """A group that was admitted, and where its last result stands (partition -1: it isn't closed)."""

    event: GroupEvent
    home: int
    """Its partition of trajectory.scored."""
    at: int
    closed_at: tuple[int, int] = (-1, -1)


@dataclass(slots=True)
class Trainer:
    """A trainer as it last registered, and what it has consumed or skipped."""

    beat: TrainerRegistered
    heard_at: int
    since_at: int
    """Groups admitted before aren't for it."""
    done: set[str] = field(default_factory=set)
    watermarks: dict[int, int] = field(default_factory=dict)
    """Per partition of trajectory.scored, up to where everything is finished for it."""
    waiting: set[str] = field(default_factory=set)
    """The groups that it hasn't consumed: its lag."""
    wish: GroupWish = field(init=False)

    def __post_init__(self) -> None:
        """Read its filter once: it is asked for every group."""
        wish = GroupWish.from_json(self.beat.filter)
        self.wish = wish if wish.policy_id else replace(wish, policy_id=self.beat.policy_id or None)

    def is_live(self, now: int) -> bool:
        """Whether its time to live hasn't run out."""
        return now - self.heard_at <= self.beat.ttl_s * 1000

    def wants(self, group: Any) -> bool:
        """Whether its filter matches a group, by what is known before it runs (`group`: a GroupEvent or a GroupRow)."""
        if not is_for(group.for_trainer, self.beat.trainer_id):
            return False
        about = {"task_id": group.task_id, "harness": group.harness, "metadata": group.metadata}
        return self.wish.refuses(policy_id=group.policy_id, **about) is None


@dataclass(slots=True)
class Ledger:
    """All admitted groups and all trainers."""

    admitted: dict[str, Admitted] = field(default_factory=dict)
    trainers: dict[str, Trainer] = field(default_factory=dict)
    _early: dict[str, tuple[set[str], dict[int, int]]] = field(default_factory=dict)
    """What a trainer consumed before it was seen to register."""

    def take_group(self, event: GroupEvent, at: int, home: int) -> None:
        """Note that a group was admitted or closed, at this time of the log; `home` is its partition of trajectory.scored."""
        if event.type is Fact.ADMITTED and event.group_id not in self.admitted:
            group = self.admitted[event.group_id] = Admitted(event, home, at)
            for trainer in self.trainers.values():
                self._count(trainer, group)
        elif event.type is Fact.CLOSED and (known := self.admitted.get(event.group_id)) is not None:
            known.closed_at = (event.partition, event.offset)
            for trainer in self.trainers.values():
                if _is_behind(trainer, known):
                    trainer.waiting.discard(event.group_id)

    def take_beat(self, beat: TrainerRegistered, at: int) -> None:
        """Note a trainer's registration, or its repetition, at this time of the log."""
        known = self.trainers.get(beat.trainer_id)
        if known is not None and known.beat.started_at == beat.started_at and known.beat.filter == beat.filter:
            known.beat, known.heard_at = beat, max(at, known.heard_at)
            return
        trainer = Trainer(beat, at, _since(beat, at, known))
        if known is not None:
            trainer.done, trainer.watermarks = known.done, known.watermarks
        else:
            trainer.done, trainer.watermarks = self._early.pop(beat.trainer_id, (set(), {}))
        self.trainers[beat.trainer_id] = trainer
        for group in self.admitted.values():
            self._count(trainer, group)

    def take_batch(self, batch: BatchConsumed) -> None:
        """Note what a trainer consumed and skipped, and up to where it has finished everything."""
        trainer = self.trainers.get(batch.trainer_id)
        if trainer is None:
            done, marks = self._early.setdefault(batch.trainer_id, (set(), {}))
        else:
            done, marks = trainer.done, trainer.watermarks
        done.update(batch.groups, (skip.group_id for skip in batch.skipped))
        marks.update({mark.partition: max(mark.offset, marks.get(mark.partition, 0)) for mark in batch.offsets})
        if trainer is not None:
            trainer.waiting -= done
            trainer.waiting -= {name for name in trainer.waiting if _is_behind(trainer, self.admitted[name])}

    def lag(self, trainer: Trainer, pending: Iterable[Any] = ()) -> int:
        """The groups that were admitted for it and that it hasn't consumed; `pending` are admissions that aren't read back yet."""
        return len(trainer.waiting) + sum(
            1 for p in pending if p.group_id not in self.admitted and trainer.wants(p) and _is_new(trainer, p)
        )

    def forget(self, now: int) -> None:
        """Drop groups that retention has taken, and trainers that have been silent for as long."""
        old = [name for name, group in self.admitted.items() if group.at < now - KEEP_MS]
        for name in old:
            del self.admitted[name]
        for name, trainer in list(self.trainers.items()):
            trainer.waiting.difference_update(old)
            trainer.done.difference_update(old)
            if trainer.heard_at < now - KEEP_MS:
                del self.trainers[name]

    def _count(self, trainer: Trainer, group: Admitted) -> None:
        event = group.event
        reads = trainer.beat.partitions
        if (
            group.at >= trainer.since_at
            and (not reads or group.home in reads)
            and event.group_id not in trainer.done
            and trainer.wants(event)
            and not _is_behind(trainer, group)
        ):
            trainer.waiting.add(event.group_id)


def _is_behind(trainer: Trainer, group: Admitted) -> bool:
    """Whether the trainer has read past the group's last result: it is finished with it, whatever became of it."""
    partition, offset = group.closed_at
    return partition >= 0 and offset < trainer.watermarks.get(partition, 0)


def _is_new(trainer: Trainer, group: Any) -> bool:
    return group.group_id not in trainer.waiting and group.group_id not in trainer.done


def _since(beat: TrainerRegistered, at: int, known: Trainer | None) -> int:
    """From when on admitted groups are for a trainer that starts now."""
    if beat.start == "earliest":
        return 0
    if isinstance(beat.start, int):
        return beat.start
    if known is not None and (beat.start == CHECKPOINT or beat.started_at == known.beat.started_at):
        return known.since_at
    # By the log's clock, as the groups: a trainer whose own is behind would seem to owe what it never gets to see.
    return at
