"""Model and optimizer of a run: loaded from a checkpoint, changed by a step, written into one."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer_sink.policies.digest import digest_of
from trainer_sink.reference.checkpoints import OPTIMIZER, RunState
from trainer_sink.reference.errors import CheckpointError, TrainerError
from trainer_sink.reference.grpo import Judge, update
from trainer_sink.reference.model import PolicyModel
from trainer_sink.reference.passes import tokens_of
from trainer_sink.reference.settings import GrpoSettings
from trainer_sink.sequences import TrainingSequence


class Learner:
    """What a step changes. All methods block, and are called one at a time."""

    def __init__(
        self,
        model: PolicyModel,
        optimizer: torch.optim.Optimizer,
        reference: PolicyModel | None,
        settings: GrpoSettings,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._reference = reference
        self._settings = settings
        self.digest = ""
        """Of the weights as they were last loaded or saved."""

    @classmethod
    def load(cls, settings: GrpoSettings, checkpoint: Path | None) -> Learner:
        """From a checkpoint of the run, or from the settings' model."""
        if settings.device == "cpu":
            torch.set_num_threads(settings.threads)
        torch.manual_seed(settings.seed)
        source = checkpoint or settings.model
        model = PolicyModel.load(
            source,
            device=settings.device,
            dtype=settings.dtype,
            gradient_checkpointing=settings.gradient_checkpointing,
        )
        optimizer = torch.optim.AdamW(
            model.module.parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        reference = None
        if settings.kl_coef:
            path = settings.reference_model or settings.model
            reference = PolicyModel.load(path, device=settings.device, dtype=settings.dtype, is_trained=False)
        learner = cls(model, optimizer, reference, settings)
        if checkpoint is not None:
            learner._restore(checkpoint / OPTIMIZER)
        learner.digest = digest_of(source)
        return learner

    def update(self, sequences: Sequence[TrainingSequence], step: int, version: str, judge: Judge) -> dict[str, Any]:
        """One step of GRPO; the report's fields that come from it. TrainerError for tokens that the model doesn't know."""
        self._check_ids(sequences)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.lr_at(step)
        stats = update(
            self._model,
            self._optimizer,
            sequences,
            self._settings,
            version=version,
            reference=self._reference,
            judge=judge,
        )
        values = dataclasses.asdict(stats)
        del values["where"]
        return values

    def filler(self, state: RunState) -> Callable[[Path], RunState]:
        """What writes the present weights into a checkpoint directory, beside `state`."""

        def fill(directory: Path) -> RunState:
            self._model.save(directory)
            rng = {"cpu": torch.get_rng_state()}
            kept = {"optimizer": self._optimizer.state_dict(), "rng": rng, "master": self._model.master()}
            torch.save(kept, directory / OPTIMIZER)
            self.digest = digest_of(directory)
            return dataclasses.replace(state, weights_digest=self.digest)

        return fill

    def _check_ids(self, sequences: Sequence[TrainingSequence]) -> None:
        """On a GPU such an id would end the process with an assertion that names nothing."""
        known = int(self._model.module.get_input_embeddings().num_embeddings)
        for one in sequences:
            ids = tokens_of(one)
            if len(ids) and not 0 <= ids.min() <= ids.max() < known:
                raise TrainerError(
                    f"{one.name} has token {ids.max() if ids.max() >= known else ids.min()}, the model knows 0 … {known - 1}: it was "
                    "sampled with another tokenizer. Train the model that the policy's engines serve"
                )

    def _restore(self, path: Path) -> None:
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            self._optimizer.load_state_dict(kept["optimizer"])
            torch.set_rng_state(kept["rng"]["cpu"])
            self._model.restore_master(kept["master"])
        except (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, pickle.UnpicklingError) as exc:
            raise CheckpointError(
                f"{path} is damaged ({exc!r}): resume from an older one, or use another directory"
            ) from exc
