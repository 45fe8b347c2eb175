"""Where a sink stands, as a value that a trainer saves beside its weights.

A checkpoint holds per partition the low watermark (the first offset of the oldest unfinished group), the finished
groups whose records stand above it or may still be repeated, and what identifies the log. Groups that were yielded but
not committed count as unfinished: after a restore they come again.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from schemas.codec import decode, encode
from schemas.records import BatchConsumed
from trainer_sink.errors import CheckpointMismatchError
from trainer_sink.memory import Finished

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Anchor:
    """A record that was read: where it stands, and its event id. A log made anew has another one there."""

    partition: int
    offset: int
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A sink's position. `start` is where partitions begin from which nothing was read yet."""

    trainer_id: str
    topic: str
    partition_count: int
    start: str | int
    watermarks: Mapping[int, int] = field(default_factory=dict)
    finished: Mapping[int, Mapping[str, Finished]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Skipped groups that no BatchConsumed has reported yet, with their reasons."""
    last_batch: BatchConsumed | None = None
    """Published again after a restore; readers drop the repeat by its id."""
    anchor: Anchor | None = None
    """The last record that was read; None when there was none."""

    def to_state(self) -> dict[str, Any]:
        """Plain values for `json.dump` or `torch.save`."""
        return {
            "format": FORMAT,
            "trainer_id": self.trainer_id,
            "topic": self.topic,
            "partition_count": self.partition_count,
            "start": self.start,
            "partitions": {
                str(n): {
                    "watermark": mark,
                    "finished": {g: [f.outcome, f.last_offset] for g, f in self.finished.get(n, {}).items()},
                }
                for n, mark in sorted(self.watermarks.items())
            },
            "skipped": dict(self.skipped),
            # The framed record itself, so that a later release reads it like any old record.
            "last_batch": None if self.last_batch is None else _pack(self.last_batch),
            "anchor": None if self.anchor is None else list(astuple(self.anchor)),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Checkpoint:
        """Read `to_state`'s values; CheckpointMismatchError when they are none."""
        found = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        if found != FORMAT:
            raise CheckpointMismatchError(
                f"this is no sink checkpoint of format {FORMAT} (it says {found!r}): "
                "load the state that GroupConsumer.state_dict() returned"
            )
        try:
            partitions = {int(n): part for n, part in state["partitions"].items()}
            batch = state["last_batch"]
            anchor = state.get("anchor")  # checkpoints of the first release have none
            check_start(state["start"])
            return cls(
                trainer_id=str(state["trainer_id"]),
                topic=str(state["topic"]),
                partition_count=int(state["partition_count"]),
                start=state["start"],
                watermarks={n: _offset(part["watermark"]) for n, part in partitions.items()},
                finished={
                    n: {g: Finished(str(outcome), int(last)) for g, (outcome, last) in part["finished"].items()}
                    for n, part in partitions.items()
                },
                skipped={str(g): str(why) for g, why in state["skipped"].items()},
                last_batch=None if batch is None else _unpack(batch),
                anchor=None if anchor is None else Anchor(int(anchor[0]), _offset(anchor[1]), str(anchor[2])),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise CheckpointMismatchError(
                f"the sink checkpoint is damaged, or of a newer release: {exc!r}; use an older one"
            ) from exc

    def check(self, *, trainer_id: str, topic: str, ends: Mapping[int, int], partitions: frozenset[int]) -> None:
        """Raise CheckpointMismatchError unless it belongs to this trainer and to this very log.

        `ends` are the topic's end offsets, `partitions` those that this sink reads.
        """
        if self.trainer_id != trainer_id:
            raise CheckpointMismatchError(
                f"the checkpoint is of trainer {self.trainer_id!r}, this one is {trainer_id!r}: "
                "give the consumer the same trainer_id, or start without the checkpoint"
            )
        if (self.topic, self.partition_count) != (topic, len(ends)):
            raise CheckpointMismatchError(
                f"the checkpoint is of {self.topic} with {self.partition_count} partitions, the log is {topic} with "
                f"{len(ends)}: groups would be looked for in the wrong place; use the log that it was made with"
            )
        if unread := sorted(self.watermarks.keys() - partitions):
            raise CheckpointMismatchError(
                f"the checkpoint has positions in partitions {unread}, which this sink doesn't read: "
                "give the consumer the same partitions"
            )
        if self.anchor is not None and self.anchor.partition not in partitions:
            raise CheckpointMismatchError(
                f"the checkpoint knows its log by a record of partition {self.anchor.partition}, which this sink doesn't read: "
                "give the consumer the same partitions, or use an older checkpoint"
            )
        for number, mark in self.watermarks.items():
            if mark > ends[number]:
                raise CheckpointMismatchError(
                    f"{topic}[{number}] ends at {ends[number]}, before the checkpoint's position {mark}: the topic was "
                    "made anew since; start without the checkpoint"
                )

    def check_anchor(self, event_id: str | None) -> None:
        """Raise CheckpointMismatchError when the log has another record (`event_id`) where the anchor stood; None: it has expired."""
        if self.anchor is not None and event_id not in (None, self.anchor.event_id):
            raise CheckpointMismatchError(
                f"{self.topic}[{self.anchor.partition}] has another record at {self.anchor.offset} than when the checkpoint "
                "was made: the topic was made anew since; start without the checkpoint"
            )


def check_start(start: object) -> None:
    """Raise ValueError for what says no beginning: an end of the log, or UTC epoch ms."""
    if start not in ("earliest", "latest") and not (isinstance(start, int) and start >= 0):
        raise ValueError(f"start must be 'earliest', 'latest' or UTC epoch ms, not {start!r}")


def _offset(value: Any) -> int:
    """A place in a partition; ValueError for what is none."""
    offset = int(value)
    if offset < 0:
        raise ValueError(f"{offset} is no offset")
    return offset


def _pack(batch: BatchConsumed) -> str:
    return base64.b64encode(encode(batch).value).decode()


def _unpack(text: str) -> BatchConsumed:
    try:
        record = decode(base64.b64decode(text, validate=True))
    except binascii.Error as exc:
        raise ValueError(f"last_batch isn't base64: {exc}") from exc
    if not isinstance(record, BatchConsumed):
        raise TypeError(f"last_batch holds a {record.NAME}")
    return record
