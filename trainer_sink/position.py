"""Where a consumer stands on the log: what its checkpoint says, and whether a checkpoint belongs to the log that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from bus import Bus
from schemas.records import BatchConsumed
from trainer_sink.checkpoint import Checkpoint
from trainer_sink.commits import Commits
from trainer_sink.errors import SinkStateError
from trainer_sink.groups import Finished, GroupAssembler
from trainer_sink.reader import TOPIC, ScoredReader, Start


class Position:
    """The position of one consumer, which lies in its assembler, its reader and its commits. `start`: where it begins without one."""

    def __init__(
        self, trainer_id: str, start: Start, assembler: GroupAssembler, reader: ScoredReader, commits: Commits
    ) -> None:
        self.start: Start = start
        self._trainer_id = trainer_id
        self._assembler = assembler
        self._reader = reader
        self._commits = commits
        self._checkpoint: Checkpoint | None = None
        self._partition_count = 0

    @property
    def is_restored(self) -> bool:
        """Whether it was taken from a checkpoint."""
        return self._checkpoint is not None

    async def settle(self, bus: Bus, ends: Mapping[int, int], partitions: frozenset[int]) -> None:
        """Take a log's place: `ends` are its topic's end offsets, `partitions` those that are read.

        Raises CheckpointMismatchError when the checkpoint is another trainer's or another log's, and BusError.
        """
        self._partition_count = len(ends)
        checkpoint = self._checkpoint
        if checkpoint is not None:
            checkpoint.check(trainer_id=self._trainer_id, topic=TOPIC, ends=ends, partitions=partitions)
            if (anchor := checkpoint.anchor) is not None:
                found = await bus.at(TOPIC, anchor.partition, [anchor.offset])
                event_id = found[0].headers.get("ce_id", b"").decode("utf-8", "replace") if found else None
                checkpoint.check_anchor(event_id)
                self._reader.anchor = anchor
        elif self.start == "latest":
            # Fixed now, so that a checkpoint taken before the first record doesn't mean a later "latest".
            self._assembler.restore({n: ends[n] for n in partitions}, {}, {})

    def state(self) -> dict[str, Any]:
        """The position after the last commit, as plain values."""
        return self._state(
            self._assembler.watermarks(),
            self._assembler.finished(),
            skipped=self._assembler.skipped,
            last_batch=self._commits.last,
        )

    def state_after(self, batch: BatchConsumed) -> dict[str, Any]:
        """What `state` will say once this commit is published."""
        marks = {place.partition: place.offset for place in batch.offsets}
        return self._state(marks, self._assembler.finished(also=batch.groups), skipped={}, last_batch=batch)

    def _state(
        self,
        watermarks: Mapping[int, int],
        finished: Mapping[int, Mapping[str, Finished]],
        *,
        skipped: Mapping[str, str],
        last_batch: BatchConsumed | None,
    ) -> dict[str, Any]:
        return Checkpoint(
            trainer_id=self._trainer_id,
            topic=TOPIC,
            partition_count=self._partition_count or (self._checkpoint.partition_count if self._checkpoint else 0),
            start=self.start,
            watermarks=watermarks,
            finished=finished,
            skipped=skipped,
            last_batch=last_batch,
            anchor=self._reader.anchor,
        ).to_state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave; once, and before it is settled. Raises CheckpointMismatchError for something else."""
        if self._checkpoint is not None:
            raise SinkStateError("load a checkpoint once, before the consumer is entered")
        checkpoint = Checkpoint.from_state(state)
        self._checkpoint = checkpoint
        self.start = cast("Start", checkpoint.start)  # `state` wrote it
        self._commits.last = checkpoint.last_batch
        self._assembler.restore(checkpoint.watermarks, checkpoint.finished, checkpoint.skipped)
