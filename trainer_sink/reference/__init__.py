"""The reference GRPO trainer: groups from Kafka in, better weights in the policy's engines out.

In: `trajectory.scored`. Out: `trainer.consumed`, `policy.timeline`, weights through the engines' own endpoints, and a directory with
checkpoints, metrics and the reward curve. Small on purpose: one process, plain torch, any Hugging Face causal language model. It
needs the extra `train`; torch and transformers are imported when a run begins.
"""

from __future__ import annotations

from trainer_sink.reference.errors import (
    CheckpointError,
    LogprobMismatchError,
    ModelLoadError,
    NotFiniteError,
    RunInUseError,
    TrainerError,
)
from trainer_sink.reference.reports import StepReport, TrainReport
from trainer_sink.reference.settings import GrpoSettings
from trainer_sink.reference.trainer import train_grpo

__all__ = [
    "CheckpointError",
    "GrpoSettings",
    "LogprobMismatchError",
    "ModelLoadError",
    "NotFiniteError",
    "RunInUseError",
    "StepReport",
    "TrainReport",
    "TrainerError",
    "train_grpo",
]
