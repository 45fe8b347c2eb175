"""Why the reference trainer doesn't go on. Each says what happened, where, and what to do next."""

from __future__ import annotations

from trainer_sink.errors import SinkError


class TrainerError(SinkError):
    """Root of the reference trainer's errors."""


class RunInUseError(TrainerError):
    """Another process trains in this output directory."""


class CheckpointError(TrainerError):
    """A run can't be resumed from what its output directory holds."""


class ModelLoadError(TrainerError):
    """A directory doesn't hold a model that can be trained."""


class NotFiniteError(TrainerError):
    """A step's gradient isn't finite: taking it would turn every weight into NaN."""


class LogprobMismatchError(TrainerError):
    """The trainer's log-probabilities differ from the engine's under the same weights: the ratio would mean nothing.

    `max_diff` is the largest difference, `where` names its sequence and token.
    """

    def __init__(self, message: str, *, max_diff: float, where: str) -> None:
        super().__init__(message)
        self.max_diff = max_diff
        self.where = where
