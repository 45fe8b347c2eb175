"""A tiny random model of the Qwen3 architecture, and sequences that it could have sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from schemas.records import VersionSpan
from trainer_sink.sequences import TrainingSequence

VOCAB = 48


def write_model(directory: Path, *, seed: int = 0) -> Path:
    """A checkpoint directory of about 10,000 parameters, with a file beside the weights as a tokenizer would be."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.3,  # wide, so that contexts give different logits
        tie_word_embeddings=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def sequence(
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    mask: Iterable[int] | None = None,
    logprobs: Iterable[float] | None = None,
    version: str = "0",
    group: str = "g",
    name: str = "s",
    **more: Any,
) -> TrainingSequence:
    """One trace; all of its response is sampled unless `mask` says otherwise."""
    known = np.array([1] * len(response) if mask is None else list(mask), np.uint8)
    values = np.zeros(len(response), np.float32) if logprobs is None else np.array(list(logprobs), np.float32)
    return TrainingSequence(
        session_id=name,
        group_id=group,
        task_id="t",
        prompt_ids=np.array(prompt, np.int32),
        response_ids=np.array(response, np.int32),
        loss_mask=known,
        logprobs=values,
        version_spans=(VersionSpan(version=version, start=0, end=len(response)),),
        **more,
    )
