"""The trainer's library: whole groups of scored trajectories, explicit commits, checkpoints, exports.

In: trajectory.scored, policy.timeline. Out: groups to a training loop, `trainer.consumed` to the orchestrator, new weights to engines,
files; what can't be decoded goes to `trajectory.scored.sink-<trainer_id>.dead`. It installs without the proxy, the processors or a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_sink.consumer import GroupConsumer
from trainer_sink.credit import CreditRule
from trainer_sink.errors import CheckpointMismatchError, RecordsExpiredError, SinkError, SinkStateError
from trainer_sink.filters import GroupFilter, SkipReason, Wishes
from trainer_sink.groups import Group, GroupAssembler, Source
from trainer_sink.ranks import deal, partitions_of
from trainer_sink.sequences import TrainingSequence, sequences_of
from trainer_sink.staleness import Staleness

if TYPE_CHECKING:
    from trainer_sink.client import AsyncPolynyaClient, PolynyaClient

__all__ = [
    "AsyncPolynyaClient",
    "CheckpointMismatchError",
    "CreditRule",
    "Group",
    "GroupAssembler",
    "GroupConsumer",
    "GroupFilter",
    "PolynyaClient",
    "RecordsExpiredError",
    "SinkError",
    "SinkStateError",
    "SkipReason",
    "Source",
    "Staleness",
    "TrainingSequence",
    "Wishes",
    "deal",
    "partitions_of",
    "sequences_of",
]


def __getattr__(name: str) -> Any:
    """The clients of the HTTP API, imported when they are asked for: their httpx is an extra."""
    if name in ("PolynyaClient", "AsyncPolynyaClient"):
        try:
            from trainer_sink import client
        except ModuleNotFoundError as missing:
            raise ImportError(f"{name} needs {missing.name}: pip install 'polynya[client]'") from missing
        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
