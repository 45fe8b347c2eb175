"""The trainer's library: whole groups of scored trajectories, explicit commits, checkpoints, exports.

In: trajectory.scored. Out: groups to a training loop, `trainer.consumed` to the orchestrator, Parquet files; what can't
be decoded goes to `trajectory.scored.sink-<trainer_id>.dead`. It installs without the proxy, the processors or a GPU.
"""

from __future__ import annotations

from trainer_sink.consumer import GroupConsumer
from trainer_sink.errors import CheckpointMismatchError, RecordsExpiredError, SinkError, SinkStateError
from trainer_sink.filters import GroupFilter, SkipReason
from trainer_sink.groups import Group, GroupAssembler, Source

__all__ = [
    "CheckpointMismatchError",
    "Group",
    "GroupAssembler",
    "GroupConsumer",
    "GroupFilter",
    "RecordsExpiredError",
    "SinkError",
    "SinkStateError",
    "SkipReason",
    "Source",
]
