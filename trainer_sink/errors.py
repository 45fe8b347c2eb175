"""What a trainer's sink refuses to go on with. None of these is retriable: each needs a decision."""

from __future__ import annotations


class SinkError(Exception):
    """Root of the sink's errors."""

    is_retriable = False


class CheckpointMismatchError(SinkError):
    """A checkpoint doesn't belong to this trainer, topic or log; going on would skip or repeat groups in silence."""


class RecordsExpiredError(SinkError):
    """The log no longer has records that the sink still needs."""


class SinkStateError(SinkError):
    """A call came at the wrong time or with the wrong step: the sink's position would become meaningless."""
