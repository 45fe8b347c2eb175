"""prime-rl's `TrainingSample`: the struct's fields in its order, every per-token list as long as the ids."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.trainer_sink.adapters.formats import check
from tests.trainer_sink.hand_made import group
from trainer_sink.adapters.prime_rl import FIELDS, as_array, samples_of
from trainer_sink.credit import CreditRule
from trainer_sink.sequences import sequences_of

# prime-rl 0.8.0, src/prime_rl/transports/rollouts/types.py: the struct's fields, in order (it travels as an array).
TRAINING_SAMPLE: dict[str, Any] = {
    "token_ids": list[int],
    "mask": list[bool],
    "logprobs": list[float],
    "temperatures": list[float],
    "env_name": str,
    "ref_logprobs": list[float] | None,
    "mm_kwargs": dict[str, Any] | None,
    "routed_experts": Any,
    "mm_token_type_ids": list[int] | None,
    "rl_weights": list[float] | None,
    "ce_weights": list[float] | None,
    "ref_kl_weights": list[float] | None,
    "advantages": list[float] | None,
}
PER_TOKEN = ("token_ids", "mask", "logprobs", "temperatures", "rl_weights", "advantages")
RULE = CreditRule(advantage="mean_baseline")


def test_fields_types_and_order() -> None:
    """Each sample is the struct, and its array has the struct's order."""
    assert tuple(TRAINING_SAMPLE) == FIELDS
    for sample in samples_of(sequences_of(group(), RULE)):
        check(TRAINING_SAMPLE, sample)
        assert {len(sample[name]) for name in PER_TOKEN} == {len(sample["token_ids"])}
        assert as_array(sample)[0] == sample["token_ids"]
        assert as_array(sample)[-1] == sample["advantages"]


def test_values_by_hand() -> None:
    """Credit and weight stand on trained tokens only; a fork's traces weigh half each."""
    main, branch, cut, _ = samples_of(sequences_of(group(), RULE))
    assert main["token_ids"] == [11, 12, 13, 21, 22, 31, 32, 23, 24]
    assert main["mask"] == [False, False, False, True, True, False, False, True, True]
    assert main["logprobs"] == [0, 0, 0, -0.125, -0.25, 0, 0, -0.625, -0.75]
    assert main["temperatures"] == [0.7] * 9
    assert main["advantages"] == [0, 0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5]
    assert main["rl_weights"] == [0, 0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5]
    assert branch["rl_weights"] == [0, 0, 0, 0, 0, 0, 0.5]
    assert cut["advantages"] == [0, 0, -0.5, -0.5, -0.5]
    assert main["env_name"] == "shell"


def test_temperature_and_environment_where_the_task_says_none() -> None:
    """prime-rl needs a number; the caller knows what the harness sampled at."""
    unknown = [dataclasses.replace(s, temperature=None) for s in sequences_of(group())]
    (first, *_) = samples_of(unknown, env_name="swe", temperature=0.9)
    assert (first["temperatures"][0], first["env_name"]) == (0.9, "swe")
