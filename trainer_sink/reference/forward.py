"""Log-probabilities of the sampled tokens: the model runs once over a shared prefix and once over what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer_sink.reference.passes import Pass, tokens_of, trained_places
from trainer_sink.sequences import TrainingSequence

# Layers that keep every key, so that a cache over the prefix is the whole truth; a sliding window forgets, a state isn't expandable.
SHAREABLE = frozenset({"full_attention"})


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tensors of one pass: B sequences, P shared tokens, S in the longest rest, N trained tokens in the order of the sequences.

    `rows` and `columns` say where in `rest` each trained token's *predecessor* stands.
    """

    prefix: Tensor
    """int64 (P,)."""
    rest: Tensor
    """int64 (B, S), right-padded with 0."""
    rows: Tensor
    """int64 (N,)."""
    columns: Tensor
    """int64 (N,)."""
    targets: Tensor
    """int64 (N,): the trained tokens."""
    captured: Tensor
    """float32 (N,): the logprobs that they were sampled with."""
    advantages: Tensor
    """float32 (N,)."""
    shares: Tensor
    """float32 (N,): each token's part in the step's mean."""
    temperatures: Tensor
    """float32 (N,)."""
    is_current: Tensor
    """bool (N,): sampled by the weights that the step begins with."""
    names: tuple[str, ...]
    """Of the sequences, for messages."""

    def where(self, token: int) -> str:
        """The sequence and the place of a trained token in it."""
        row = int(self.rows[token])
        return f"{self.names[row]} token {len(self.prefix) + int(self.columns[token]) + 1}"


def token_batch(
    sequences: Sequence[TrainingSequence],
    part: Pass,
    shares: Sequence[float],
    *,
    version: str,
    temperature: float,
    device: str,
) -> TokenBatch:
    """The tensors of a pass. `shares`: for each of all sequences, what one of its tokens counts in the step's mean."""
    rest = np.zeros((len(part.members), part.width), np.int64)
    columns: dict[str, list[np.ndarray[Any, Any]]] = {
        name: []
        for name in ("rows", "columns", "targets", "captured", "advantages", "shares", "temperatures", "current")
    }
    for row, index in enumerate(part.members):
        sequence = sequences[index]
        ids, places = tokens_of(sequence), trained_places(sequence)
        rest[row, : len(ids) - part.prefix] = ids[part.prefix :]
        response = places - len(sequence.prompt_ids)
        current = np.zeros(len(sequence.response_ids), bool)
        for span in sequence.version_spans:
            if span.version == version:
                current[span.start : span.end] = True
        count = len(places)
        columns["rows"].append(np.full(count, row, np.int64))
        columns["columns"].append((places - 1 - part.prefix).astype(np.int64))
        columns["targets"].append(ids[places].astype(np.int64))
        columns["captured"].append(sequence.logprobs[response].astype(np.float32))
        columns["advantages"].append(np.full(count, sequence.advantage, np.float32))
        columns["shares"].append(np.full(count, shares[index], np.float32))
        columns["temperatures"].append(np.full(count, _temperature(sequence, temperature), np.float32))
        columns["current"].append(current[response])
    joined = {name: torch.from_numpy(np.concatenate(parts)).to(device) for name, parts in columns.items()}
    prefix = tokens_of(sequences[part.members[0]])[: part.prefix].astype(np.int64)
    return TokenBatch(
        prefix=torch.from_numpy(prefix).to(device),
        rest=torch.from_numpy(rest).to(device),
        rows=joined["rows"],
        columns=joined["columns"],
        targets=joined["targets"],
        captured=joined["captured"],
        advantages=joined["advantages"],
        shares=joined["shares"],
        temperatures=joined["temperatures"],
        is_current=joined["current"],
        names=tuple(sequences[i].name for i in part.members),
    )


def _temperature(sequence: TrainingSequence, default: float) -> float:
    """What the captured logprobs were divided by; an engine that tells them before the temperature is taken at its word."""
    if sequence.logprobs_mode == "raw":
        return 1.0
    return default if sequence.temperature is None else sequence.temperature


def can_share_prefix(module: Any) -> bool:
    """Whether keys and values of a prefix can stand in for its tokens in this architecture."""
    config = module.config.get_text_config()
    return set(getattr(config, "layer_types", None) or ["full_attention"]) <= SHAREABLE


def token_logprobs(module: Any, batch: TokenBatch, *, with_entropy: bool = False) -> tuple[Tensor, Tensor | None]:
    """(log-probabilities of the N trained tokens, entropies at their places), float32, with gradients where they are on."""
    logits = _logits(module, batch).float() / batch.temperatures[:, None]
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, batch.targets[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1) if with_entropy else None


def _logits(module: Any, batch: TokenBatch) -> Tensor:
    """Shape (N, V): nothing but the places that are asked for goes through the head."""
    count, start = len(batch.rest), len(batch.prefix)
    more: dict[str, Any] = {"use_cache": False}
    if start:
        from transformers import DynamicCache

        cache = DynamicCache(config=module.config)
        module.base_model(input_ids=batch.prefix[None], past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(count)
        positions = torch.arange(start, start + batch.rest.shape[1], device=batch.rest.device)
        more = {"past_key_values": cache, "use_cache": True, "position_ids": positions.expand(count, -1)}
    # Padding stands on the right, where the causal mask hides it from every token that counts.
    if _has_plain_head(module):
        hidden = module.base_model(input_ids=batch.rest, **more).last_hidden_state
        logits: Tensor = module.get_output_embeddings()(hidden[batch.rows, batch.columns])
        return logits
    whole = module(input_ids=batch.rest, **more).logits
    picked: Tensor = whole[batch.rows, batch.columns]
    return picked


def _has_plain_head(module: Any) -> bool:
    """Whether logits are the head's product and nothing is done to them afterwards."""
    config = module.config.get_text_config()
    later = ("final_logit_softcapping", "logits_scaling", "logit_scale", "logits_scale")
    return not any(getattr(config, name, None) for name in later)
