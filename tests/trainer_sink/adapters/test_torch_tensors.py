"""Plain torch tensors: every value by hand, and nothing lost between the two layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainer_sink.hand_made import group
from trainer_sink.adapters.torch_tensors import SequenceTooLongError, fitting, packed, padded
from trainer_sink.credit import CreditRule
from trainer_sink.sequences import sequences_of

RULE = CreditRule(advantage="mean_baseline")


def test_a_padded_batch_by_hand() -> None:
    """Rows are prompt, response, padding; every token column is aligned with the ids."""
    batch = padded(sequences_of(group(), RULE), pad_id=9)
    assert batch["input_ids"].tolist() == [
        [11, 12, 13, 21, 22, 31, 32, 23, 24],
        [11, 12, 13, 21, 22, 33, 25, 9, 9],
        [11, 12, 26, 27, 28, 9, 9, 9, 9],
        [11, 12, 13, 14, 29, 34, 9, 9, 9],
    ]
    assert batch["loss_mask"].tolist()[0] == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert batch["logprobs"].tolist()[0] == [0, 0, 0, -0.125, -0.25, 0, 0, -0.625, -0.75]
    assert batch["versions"].tolist()[0] == [-1, -1, -1, 4, 4, -1, -1, 4, 5]
    assert batch["attention_mask"].sum(1).tolist() == [9, 7, 5, 6]
    assert batch["position_ids"].tolist()[2] == [0, 1, 2, 3, 4, 0, 0, 0, 0]
    assert batch["prompt_lengths"].tolist() == [3, 3, 2, 4]
    assert batch["response_lengths"].tolist() == [6, 4, 3, 2]
    assert batch["advantages"].tolist() == [0.5, 0.5, -0.5, 0.0]
    assert batch["weights"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert batch["rewards"].tolist() == [1.0, 1.0, 0.0, 0.5]


def test_dtypes() -> None:
    """Ids and places are int64, what the loss multiplies is float32."""
    batch = padded(sequences_of(group()), pad_id=0)
    whole = {"input_ids", "attention_mask", "position_ids", "versions", "prompt_lengths", "response_lengths"}
    assert {name for name, tensor in batch.items() if tensor.dtype == torch.int64} == whole
    assert {t.dtype for n, t in batch.items() if n not in whole} == {torch.float32}


def test_packed_rows_by_hand() -> None:
    """Longest first: 9 alone is too tight for 7, so 9 + 5 and 7 + 6 in rows of 14."""
    rows = packed(sequences_of(group(), RULE), max_tokens=14)
    assert [row["sequence_index"].tolist() for row in rows] == [[0, 2], [1, 3]]
    first = rows[0]
    assert first["input_ids"].tolist() == [11, 12, 13, 21, 22, 31, 32, 23, 24, 11, 12, 26, 27, 28]
    assert first["position_ids"].tolist() == [*range(9), *range(5)]
    assert first["cu_seqlens"].tolist() == [0, 9, 14]
    assert (first["cu_seqlens"].dtype, first["seq_lens"].tolist()) == (torch.int32, [9, 5])
    assert first["advantages"].tolist() == [0.5] * 9 + [-0.5] * 5
    assert first["weights"].tolist() == [0.5] * 9 + [1.0] * 5
    assert first["loss_mask"].tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 1]


def test_both_layouts_hold_the_same_tokens() -> None:
    """Whatever the row length, the trained tokens with their logprobs are those of the padded batch."""
    sequences = sequences_of(group())
    batch = padded(sequences, pad_id=0)
    keep = batch["attention_mask"].bool()
    for max_tokens in (9, 12, 100):
        rows = packed(sequences, max_tokens)
        assert all(len(row["input_ids"]) <= max_tokens for row in rows)
        pieces: dict[int, dict[str, torch.Tensor]] = {}
        for row in rows:
            ends = row["cu_seqlens"].tolist()
            for i, start, end in zip(row["sequence_index"].tolist(), ends, ends[1:], strict=False):
                pieces[i] = {n: row[n][start:end] for n in ("input_ids", "loss_mask", "logprobs", "versions")}
        for i in range(len(sequences)):
            for name, values in pieces[i].items():
                np.testing.assert_array_equal(values.numpy(), batch[name][i][keep[i]].numpy())


def test_long_sequences_are_named_and_never_cut() -> None:
    """A limit is an error that says which; `fitting` parts them for a trainer that leaves them out."""
    sequences = sequences_of(group())
    with pytest.raises(SequenceTooLongError, match=r"2 of 4 sequences have more than 6 tokens: .* trace 0 \(9\)"):
        packed(sequences, 6)
    with pytest.raises(SequenceTooLongError):
        padded(sequences, 0, max_tokens=8)
    fit, long = fitting(sequences, 6)
    assert ([s.length for s in fit], [s.length for s in long]) == ([5, 6], [9, 7])


def test_an_empty_batch() -> None:
    """Nothing pads to nothing, loudly; nothing packs into no rows."""
    with pytest.raises(ValueError, match="no sequence to pad"):
        padded([], 0)
    assert packed([], 10) == []
