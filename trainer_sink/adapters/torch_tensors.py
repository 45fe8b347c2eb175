"""Plain torch tensors: a padded batch, or packed rows for attention with `cu_seqlens`. Nothing is ever cut.

All token tensors are aligned with `input_ids`: position t says something about token t, which the model's output at
t - 1 predicts. So the loss uses `logits[:, :-1]` with `loss_mask[:, 1:]`, `logprobs[:, 1:]` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer_sink.errors import SinkError
from trainer_sink.sequences import TrainingSequence

if TYPE_CHECKING:
    from torch import Tensor


class SequenceTooLongError(SinkError, ValueError):
    """Sequences don't fit the trainer's limit. They are named, never cut: a cut trace is another trace."""


def fitting(
    sequences: Sequence[TrainingSequence], max_tokens: int
) -> tuple[list[TrainingSequence], list[TrainingSequence]]:
    """(those with at most `max_tokens` tokens, those with more), for a trainer that leaves the long ones out."""
    fit = [s for s in sequences if s.length <= max_tokens]
    return fit, [s for s in sequences if s.length > max_tokens]


def check_lengths(sequences: Sequence[TrainingSequence], max_tokens: int) -> None:
    """Raise SequenceTooLongError, with the names of all that are longer than `max_tokens`."""
    _, long = fitting(sequences, max_tokens)
    if long:
        named = ", ".join(f"{s.name} ({s.length})" for s in long[:5]) + (" …" if len(long) > 5 else "")
        raise SequenceTooLongError(
            f"{len(long)} of {len(sequences)} sequences have more than {max_tokens} tokens: {named}. Raise the limit, or "
            "leave them out by name with `fitting`"
        )


def padded(sequences: Sequence[TrainingSequence], pad_id: int, *, max_tokens: int | None = None) -> dict[str, Tensor]:
    """One right-padded batch: B sequences, T tokens in the longest.

    | key | dtype, shape | what |
    |---|---|---|
    | input_ids | int64 (B, T) | prompt, response, then `pad_id` |
    | attention_mask | int64 (B, T) | 1 on tokens, 0 on padding |
    | position_ids | int64 (B, T) | 0, 1, …; 0 on padding |
    | loss_mask | float32 (B, T) | 1 on trained tokens |
    | logprobs | float32 (B, T) | the behaviour policy's; 0 where the mask is 0 |
    | versions | int64 (B, T) | weight version of each sampled token, else -1 |
    | prompt_lengths, response_lengths | int64 (B,) | |
    | advantages, weights, rewards | float32 (B,) | |

    SequenceTooLongError when one has more than `max_tokens`; ValueError for an empty batch.
    """
    import torch

    if not sequences:
        raise ValueError("there is no sequence to pad: skip the group (sequences_of says why in its counts)")
    if max_tokens is not None:
        check_lengths(sequences, max_tokens)
    shape = (len(sequences), max(s.length for s in sequences))
    # Each column is written once: these are memory's own speed, and zeros that are written over cost as much again.
    ids, attention, positions, versions = (np.empty(shape, np.int64) for _ in range(4))
    mask, logprobs = np.empty(shape, np.float32), np.empty(shape, np.float32)
    attention.fill(1)
    positions[:] = np.arange(shape[1])
    for row, sequence in enumerate(sequences):
        start, end = len(sequence.prompt_ids), sequence.length
        for column, padding, prompt, response in (
            (ids, pad_id, sequence.prompt_ids, sequence.response_ids),
            (mask, 0, 0, sequence.loss_mask),
            (logprobs, 0, 0, sequence.logprobs),
            (versions, -1, -1, sequence.token_versions()),
        ):
            column[row, :start], column[row, start:end], column[row, end:] = prompt, response, padding
        attention[row, end:] = positions[row, end:] = 0
    columns = {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": positions,
        "loss_mask": mask,
        "logprobs": logprobs,
        "versions": versions,
    }
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    return tensors | {
        "prompt_lengths": torch.tensor([len(s.prompt_ids) for s in sequences], dtype=torch.int64),
        "response_lengths": torch.tensor([len(s.response_ids) for s in sequences], dtype=torch.int64),
        "advantages": torch.tensor([s.advantage for s in sequences], dtype=torch.float32),
        "weights": torch.tensor([s.weight for s in sequences], dtype=torch.float32),
        "rewards": torch.tensor([s.reward for s in sequences], dtype=torch.float32),
    }


def packed(sequences: Sequence[TrainingSequence], max_tokens: int) -> list[dict[str, Tensor]]:
    """Rows of at most `max_tokens` tokens without padding, longest sequences first (first fit, decreasing).

    A row of T tokens from N sequences:

    | key | dtype, shape | what |
    |---|---|---|
    | input_ids, position_ids | int64 (T,) | positions begin at 0 with each sequence |
    | loss_mask, logprobs | float32 (T,) | as in `padded` |
    | versions | int64 (T,) | as in `padded` |
    | advantages, weights | float32 (T,) | the sequence's, on each of its tokens |
    | seq_lens | int32 (N,) | |
    | cu_seqlens | int32 (N + 1,) | 0, then the ends |
    | sequence_index | int64 (N,) | places in `sequences` |

    The first token of a sequence is no target (its mask is 0 as long as the prompt isn't empty). SequenceTooLongError when
    one has more than `max_tokens`; an empty list for no sequences.
    """
    check_lengths(sequences, max_tokens)
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(sequences)), key=lambda i: -sequences[i].length):  # stable: equal ones keep their order
        length = sequences[i].length
        row = next((n for n, free in enumerate(room) if free >= length), None)
        if row is None:
            rows.append([])
            room.append(max_tokens)
            row = len(rows) - 1
        rows[row].append(i)
        room[row] -= length
    return [_row([(i, sequences[i]) for i in row]) for row in rows]


def _row(members: Sequence[tuple[int, TrainingSequence]]) -> dict[str, Tensor]:
    import torch

    parts = [_columns(sequence) for _, sequence in members]
    lengths = np.array([sequence.length for _, sequence in members], np.int32)
    row: dict[str, NDArray[Any]] = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    row["advantages"] = np.repeat(np.array([s.advantage for _, s in members], np.float32), lengths)
    row["weights"] = np.repeat(np.array([s.weight for _, s in members], np.float32), lengths)
    row["seq_lens"] = lengths
    row["cu_seqlens"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    row["sequence_index"] = np.array([i for i, _ in members], np.int64)
    return {name: torch.from_numpy(values) for name, values in row.items()}


def _columns(sequence: TrainingSequence) -> dict[str, NDArray[Any]]:
    """Token columns of one sequence over prompt and response, each of shape (P + R,)."""
    prompt = len(sequence.prompt_ids)
    return {
        "input_ids": np.concatenate([sequence.prompt_ids, sequence.response_ids]).astype(np.int64),
        "position_ids": np.arange(sequence.length, dtype=np.int64),
        "loss_mask": np.concatenate([np.zeros(prompt, np.float32), sequence.loss_mask.astype(np.float32)]),
        "logprobs": np.concatenate([np.zeros(prompt, np.float32), sequence.logprobs]).astype(np.float32),
        "versions": np.concatenate([np.full(prompt, -1, np.int64), sequence.token_versions()]),
    }
