"""Log-probabilities of given tokens by a Hugging Face model: one forward pass over the whole sequence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from compose.cpu_engine.model import ModelError

ROWS: Final = 128
"""Rows of logits at a time: 80 MB at a vocabulary of 152k."""


class Scorer:
    """A loaded model on one device. Blocks: call it from a worker thread."""

    def __init__(self, path: Path, *, device: str = "cpu", dtype: str = "") -> None:
        """Load `path`; without `dtype` float32 on a CPU and the checkpoint's own elsewhere. Raises ModelError."""
        if not path.is_dir():  # transformers would take the name for one on a hub
            raise ModelError(f"no such model directory: {path}")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        wanted: Any = getattr(torch, dtype) if dtype else torch.float32 if device == "cpu" else "auto"
        try:
            module: Any = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=wanted)
            self._module = module.to(device).eval()
        except (OSError, ValueError, KeyError, RuntimeError) as exc:
            raise ModelError(f"{path} can't be loaded on {device}: {exc}") from exc
        self._device = device
        config = module.config.get_text_config()
        plain = ("final_logit_softcapping", "logits_scaling", "logit_scale")
        self._is_plain = not any(getattr(config, name, None) for name in plain)
        self.context_length: int = config.max_position_embeddings
        self.vocab_size: int = config.vocab_size

    @torch.inference_mode()
    def logprobs(self, ids: Sequence[int], positions: Sequence[int], divisors: Sequence[float]) -> list[float]:
        """The log-probabilities of the tokens at `positions` (each > 0) of `ids`, logits divided by `divisors`."""
        sequence = torch.tensor([list(ids)], device=self._device)
        before = torch.tensor(positions, device=self._device) - 1
        if self._is_plain:
            hidden = self._module.base_model(input_ids=sequence, use_cache=False).last_hidden_state[0, before]
            head = self._module.get_output_embeddings()
        else:  # what the model does behind its head, only the model knows
            hidden = self._module(input_ids=sequence, use_cache=False, logits_to_keep=before).logits[0]
            head = torch.nn.Identity()
        found: list[float] = []
        targets = sequence[0, before + 1].unsqueeze(1)
        scale = torch.tensor(divisors, device=self._device, dtype=torch.float32).unsqueeze(1)
        for start in range(0, len(positions), ROWS):
            rows = slice(start, start + ROWS)
            logits = head(hidden[rows]).float() / scale[rows]
            found += logits.log_softmax(-1).gather(1, targets[rows]).squeeze(1).tolist()
        return found
