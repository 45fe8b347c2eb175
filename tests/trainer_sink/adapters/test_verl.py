"""verl's `DataProto`: tensors by hand, and what its GRPO makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainer_sink.hand_made import group
from trainer_sink.adapters.torch_tensors import SequenceTooLongError
from trainer_sink.adapters.verl import data_of
from trainer_sink.credit import CreditRule
from trainer_sink.sequences import sequences_of

RULE = CreditRule(advantage="mean_baseline")

# verl 0.9.1, experimental/agent_loop/agent_loop.py (_postprocess): names, dtypes, and P (prompts), R (responses) or their sum.
TENSORS = {
    "prompts": (torch.int64, "P"),
    "responses": (torch.int64, "R"),
    "response_mask": (torch.int64, "R"),
    "input_ids": (torch.int64, "PR"),
    "attention_mask": (torch.int64, "PR"),
    "position_ids": (torch.int64, "PR"),
    "rollout_log_probs": (torch.float32, "R"),
    "rm_scores": (torch.float32, "R"),
    # What ray_trainer.compute_advantage adds later:
    "advantages": (torch.float32, "R"),
    "returns": (torch.float32, "R"),
    # Ours:
    "weights": (torch.float32, ""),
}
NON_TENSORS = {
    "uid",
    "session_id",
    "trajectory_id",
    "trace_index",
    "__num_turns__",
    "min_global_steps",
    "max_global_steps",
}


def test_names_dtypes_and_shapes() -> None:
    """Every tensor has the batch first, every other value is an array of the batch's length."""
    tensors, names, meta = data_of(sequences_of(group(), RULE), pad_id=9, prompt_length=5, response_length=8)
    widths = {"P": (5,), "R": (8,), "PR": (13,), "": ()}
    assert {n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()} == {
        n: (dtype, (4, *widths[width])) for n, (dtype, width) in TENSORS.items()
    }
    assert names.keys() == NON_TENSORS
    assert {len(values) for values in names.values()} == {4}
    assert meta == {"metrics": [{}] * 4, "reward_extra_keys": []}


def test_values_by_hand() -> None:
    """Prompts lean right, responses lean left, positions count tokens, the reward stands on the last response token."""
    tensors, names, _ = data_of(sequences_of(group(), RULE), pad_id=9)
    assert tensors["prompts"].tolist() == [[9, 11, 12, 13], [9, 11, 12, 13], [9, 9, 11, 12], [11, 12, 13, 14]]
    assert tensors["responses"].tolist()[1] == [21, 22, 33, 25, 9, 9]
    assert tensors["response_mask"].tolist()[:2] == [[1, 1, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]]
    assert tensors["input_ids"].tolist()[2] == [9, 9, 11, 12, 26, 27, 28, 9, 9, 9]
    assert tensors["attention_mask"].tolist()[2] == [0, 0, 1, 1, 1, 1, 1, 0, 0, 0]
    assert tensors["position_ids"].tolist()[2] == [0, 0, 0, 1, 2, 3, 4, 0, 0, 0]
    assert tensors["rollout_log_probs"].tolist()[0] == [-0.125, -0.25, 0, 0, -0.625, -0.75]
    assert tensors["rm_scores"].tolist() == [
        [0, 0, 0, 0, 0, 1.0],
        [0, 0, 0, 1.0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0.5, 0, 0, 0, 0],
    ]
    assert tensors["advantages"].tolist()[2] == [-0.5, -0.5, -0.5, 0, 0, 0]
    assert tensors["weights"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert names["uid"].tolist() == [group().group_id] * 4
    assert names["__num_turns__"].tolist() == [2, 1, 1, 1]
    assert list(zip(names["min_global_steps"], names["max_global_steps"], strict=True))[:2] == [(4, 5), (5, 5)]
    assert names["session_id"][0] == names["session_id"][1]


def test_the_reward_is_found_where_verl_sums_it() -> None:
    """The outcome reward of verl is the sum of `rm_scores` over a row, at the last attended token of its response."""
    sequences = sequences_of(group(), RULE)
    tensors, _, _ = data_of(sequences, pad_id=0)
    assert tensors["rm_scores"].sum(-1).tolist() == [s.reward for s in sequences]
    last = tensors["attention_mask"][:, tensors["prompts"].shape[1] :].sum(1) - 1
    assert tensors["rm_scores"][torch.arange(4), last].tolist() == [s.reward for s in sequences]


def test_what_does_not_fit_is_named() -> None:
    """A prompt or a response over verl's configured length is an error, never cut."""
    sequences = sequences_of(group())
    with pytest.raises(
        SequenceTooLongError, match=r"1 of 4 sequences don't fit 3 prompt and 6 response tokens.*\(4 \+ 2\)"
    ):
        data_of(sequences, pad_id=0, prompt_length=3)
    with pytest.raises(SequenceTooLongError, match="max_response_length"):
        data_of(sequences, pad_id=0, response_length=5)
    with pytest.raises(ValueError, match="no sequence"):
        data_of([], pad_id=0)


def test_padding_of_a_configured_width_changes_no_token() -> None:
    """Batches of verl's fixed lengths hold the same rows."""
    sequences = sequences_of(group())
    narrow, _, _ = data_of(sequences, pad_id=0)
    wide, _, _ = data_of(sequences, pad_id=0, prompt_length=10, response_length=20)
    for row in range(4):
        keep, wide_keep = narrow["attention_mask"][row].bool(), wide["attention_mask"][row].bool()
        for name in ("input_ids", "position_ids"):
            np.testing.assert_array_equal(narrow[name][row][keep], wide[name][row][wide_keep])
