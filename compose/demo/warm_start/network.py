"""The tiny model: made, run over a batch of sessions that begin alike, sampled from, written.

A batch's common beginning (tools and directory: nine tenths of each session) is computed once, with its gradient, and its keys and
values are shared by all rows: ten times less work than row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from compose.demo.warm_start.tokens import Example

CONTEXT: Final = 2048
_VOCABULARY_GRAIN: Final = 16


def new_network(vocabulary: int, end_id: int, pad_id: int) -> Any:
    """A fresh Qwen3 model of about 0.2 M parameters; random by torch's global seed."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=-(-vocabulary // _VOCABULARY_GRAIN) * _VOCABULARY_GRAIN,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        dtype="float32",
    )
    network = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    network.generation_config.eos_token_id = [end_id]
    network.generation_config.pad_token_id = pad_id
    return network


def sampled_logprobs(network: Any, examples: Sequence[Example]) -> Tensor:
    """Log-probabilities of all tokens with mask 1, of all examples one after another."""
    rows = [example.ids for example in examples]
    shared = _common(rows)
    first = min(example.mask.index(1) for example in examples)
    shared = min(shared, first - 1)  # the last prompt token gives the first answer token: it belongs to the rows
    cache = _shared(network, rows[0][:shared], len(rows))
    longest = max(map(len, rows))
    ids = torch.tensor([row[shared:] + [0] * (longest - len(row)) for row in rows])
    hidden = network.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
    at = [
        (n, position - 1 - shared, row[position])
        for n, (row, example) in enumerate(zip(rows, examples, strict=True))
        for position, is_sampled in enumerate(example.mask)
        if is_sampled
    ]
    row_index, place, target = (torch.tensor(column) for column in zip(*at, strict=True))
    logprobs: Tensor = network.lm_head(hidden[row_index, place]).log_softmax(-1)
    return logprobs.gather(1, target.unsqueeze(1)).squeeze(1)


@torch.no_grad()
def sample(
    network: Any, prompts: Sequence[Sequence[int]], end_id: int, limit: int, generator: torch.Generator
) -> list[list[int]]:
    """One answer to each prompt, at temperature 1; the prompts must be of one length."""
    shared = min(_common(prompts), len(prompts[0]) - 1)
    cache = _shared(network, list(prompts[0][:shared]), len(prompts))
    feed = torch.tensor([list(prompt[shared:]) for prompt in prompts])
    answers: list[list[int]] = [[] for _ in prompts]
    for _ in range(limit):
        hidden = network.model(input_ids=feed, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
        feed = torch.multinomial(network.lm_head(hidden).softmax(-1), 1, generator=generator)
        for answer, token in zip(answers, feed[:, 0].tolist(), strict=True):
            if not answer or answer[-1] != end_id:
                answer.append(token)
        if all(answer[-1] == end_id for answer in answers):
            break
    return answers


def _common(rows: Sequence[Sequence[int]]) -> int:
    """How many ids all rows begin with in common."""
    first, last = min(rows, key=list), max(rows, key=list)  # in order, these two differ first
    return next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _shared(network: Any, ids: list[int], rows: int) -> Any:
    """Keys and values of a common beginning, for so many rows."""
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    if ids:
        network.model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
        for layer in cache.layers:
            layer.keys, layer.values = (tensor.expand(rows, -1, -1, -1) for tensor in (layer.keys, layer.values))
    return cache


def write_network(network: Any, directory: Path) -> None:
    """Weights, config and generation config into `directory`."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    network.save_pretrained(directory)
