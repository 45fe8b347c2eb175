"""prime-rl: `TrainingSample` of prime-rl 0.8.0, as dicts or in the order of its msgpack array.

A sample is one flat token sequence: prompt and response aren't told apart, every per-token list is as long as `token_ids`.
Its loss divides by the tokens of the whole step; `rl_weights` scales a token's part in it, which is where our session weights go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from trainer_sink.sequences import TrainingSequence

# The struct is encoded as an array: the order is the format.
FIELDS: Final = (
    "token_ids",
    "mask",
    "logprobs",
    "temperatures",
    "env_name",
    "ref_logprobs",
    "mm_kwargs",
    "routed_experts",
    "mm_token_type_ids",
    "rl_weights",
    "ce_weights",
    "ref_kl_weights",
    "advantages",
)


def samples_of(
    sequences: Sequence[TrainingSequence], *, env_name: str = "", temperature: float = 1.0
) -> list[dict[str, Any]]:
    """One sample for each sequence, for `TrainingSample(**sample)`.

    `temperature` is that of sessions whose task doesn't say one; prime-rl divides the logits by it before it compares
    logprobs, so it must be the one that the tokens were sampled at. `env_name` is the harness where it isn't given.
    """
    return [_sample(s, env_name or s.harness, temperature) for s in sequences]


def as_array(sample: dict[str, Any]) -> list[Any]:
    """The sample's values in the order of the struct, as `msgspec.msgpack` encodes it."""
    return [sample[name] for name in FIELDS]


def _sample(sequence: TrainingSequence, env_name: str, temperature: float) -> dict[str, Any]:
    prompt = len(sequence.prompt_ids)
    mask = np.concatenate([np.zeros(prompt, np.uint8), sequence.loss_mask])
    degrees = temperature if sequence.temperature is None else sequence.temperature
    return {
        "token_ids": [*sequence.prompt_ids.tolist(), *sequence.response_ids.tolist()],
        "mask": mask.astype(bool).tolist(),
        "logprobs": [0.0] * prompt + sequence.logprobs.tolist(),
        "temperatures": [degrees] * sequence.length,
        "env_name": env_name,
        "ref_logprobs": None,
        "mm_kwargs": None,
        "routed_experts": None,
        "mm_token_type_ids": None,
        "rl_weights": (mask * sequence.weight).tolist(),
        "ce_weights": None,
        "ref_kl_weights": None,
        "advantages": (mask * sequence.advantage).tolist(),
    }
