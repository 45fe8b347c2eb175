"""verl: the tensors and arrays of a `DataProto`, as its agent loop hands them to the trainer.

Follows `AgentLoopWorker._postprocess` and `DataProto.from_dict` of verl 0.9.1: prompts padded left, responses padded right,
`rm_scores` with the reward on the last token of the response, `uid` naming the prompt's group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer_sink.adapters.torch_tensors import SequenceTooLongError
from trainer_sink.sequences import TrainingSequence
from trainer_sink.staleness import number_of

if TYPE_CHECKING:
    from torch import Tensor

Batch = tuple[dict[str, "Tensor"], dict[str, NDArray[Any]], dict[str, Any]]


def data_of(
    sequences: Sequence[TrainingSequence],
    *,
    pad_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> Batch:
    """(tensors, non-tensors, meta info), for `DataProto.from_dict(tensors, non_tensors, meta_info)`; B sequences.

    P and R are `prompt_length` and `response_length`, or the longest ones here; verl's own batches use the lengths of its
    configuration, so give them when batches are joined. SequenceTooLongError when a prompt or a response is longer;
    ValueError for an empty batch.

    | tensor | dtype, shape | what |
    |---|---|---|
    | prompts | int64 (B, P) | padded left |
    | responses | int64 (B, R) | padded right |
    | response_mask | int64 (B, R) | 1 on trained tokens |
    | input_ids, attention_mask, position_ids | int64 (B, P + R) | positions count tokens, 0 on padding |
    | rollout_log_probs | float32 (B, R) | the behaviour policy's |
    | rm_scores | float32 (B, R) | the reward, on the last response token |
    | advantages, returns | float32 (B, R) | ours x the mask, for a trainer that keeps them |
    | weights | float32 (B,) | 1 / traces of the session |

    Non-tensors, each (B,): `uid` (the group), `session_id`, `trajectory_id`, `trace_index`, `__num_turns__`, `min_global_steps` and
    `max_global_steps` (weight versions; -1 where they aren't numbers).
    """
    import torch

    if not sequences:
        raise ValueError("there is no sequence: skip the group (sequences_of says why in its counts)")
    width_p = prompt_length or max(len(s.prompt_ids) for s in sequences)
    width_r = response_length or max(len(s.response_ids) for s in sequences)
    _check(sequences, width_p, width_r)
    rows = len(sequences)
    ids = np.full((rows, width_p + width_r), pad_id, np.int64)
    attention = np.zeros((rows, width_p + width_r), np.int64)
    mask = np.zeros((rows, width_r), np.int64)
    logprobs = np.zeros((rows, width_r), np.float32)
    scores = np.zeros((rows, width_r), np.float32)
    for row, sequence in enumerate(sequences):
        p, r = len(sequence.prompt_ids), len(sequence.response_ids)
        ids[row, width_p - p : width_p] = sequence.prompt_ids
        ids[row, width_p : width_p + r] = sequence.response_ids
        attention[row, width_p - p : width_p + r] = 1
        mask[row, :r] = sequence.loss_mask
        logprobs[row, :r] = sequence.logprobs
        scores[row, r - 1] = sequence.reward
    advantages = mask * np.array([[s.advantage] for s in sequences], np.float32)
    columns: dict[str, NDArray[Any]] = {
        "prompts": ids[:, :width_p].copy(),
        "responses": ids[:, width_p:].copy(),
        "response_mask": mask,
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0) * attention,
        "rollout_log_probs": logprobs,
        "rm_scores": scores,
        "advantages": advantages.astype(np.float32),
        "returns": advantages.astype(np.float32),
        "weights": np.array([s.weight for s in sequences], np.float32),
    }
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    return tensors, _names(sequences), {"metrics": [{} for _ in sequences], "reward_extra_keys": []}


def _names(sequences: Sequence[TrainingSequence]) -> dict[str, NDArray[Any]]:
    numbers = [[n for v in s.versions if (n := number_of(v)) is not None] or [-1] for s in sequences]
    return {
        "uid": np.array([s.group_id for s in sequences], dtype=object),
        "session_id": np.array([s.session_id for s in sequences], dtype=object),
        "trajectory_id": np.array([s.trajectory_id for s in sequences], dtype=object),
        "trace_index": np.array([s.trace_index for s in sequences], dtype=np.int32),
        "__num_turns__": np.array([s.turns for s in sequences], dtype=np.int32),
        "min_global_steps": np.array([min(n) for n in numbers], dtype=object),
        "max_global_steps": np.array([max(n) for n in numbers], dtype=object),
    }


def _check(sequences: Sequence[TrainingSequence], prompt_length: int, response_length: int) -> None:
    long = [s for s in sequences if len(s.prompt_ids) > prompt_length or len(s.response_ids) > response_length]
    if long:
        named = ", ".join(f"{s.name} ({len(s.prompt_ids)} + {len(s.response_ids)})" for s in long[:5])
        raise SequenceTooLongError(
            f"{len(long)} of {len(sequences)} sequences don't fit {prompt_length} prompt and {response_length} response "
            f"tokens: {named}{' …' if len(long) > 5 else ''}. Raise data.max_prompt_length or data.max_response_length, or "
            "leave those sequences out"
        )
