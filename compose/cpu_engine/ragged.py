"""Key-value storage per request, and attention over requests of different lengths packed into one forward pass.

All tokens of a step (whole prompts, pieces of prompts, single decode tokens) travel through the model as one row, so
that every matrix product is done once for all requests; only attention looks at each request's own keys and values.
It plugs into any transformers model through its attention interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ATTENTION_NAME = "polynya_ragged"
GROWTH = 1.5  # buffers grow by half, so appending n tokens one by one copies O(n) in all
GRAIN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class KeyValuePrefix:
    """Keys and values of the first `length` tokens of some sequence: views, never written through.

    Each tensor is (heads, length, head_dim); one pair per layer.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int

    def cut(self, length: int) -> KeyValuePrefix:
        """The first `length` tokens of this prefix."""
        return KeyValuePrefix(tuple((k[:, :length], v[:, :length]) for k, v in self.layers), length)


class KeyValues:
    """Growing keys and values of one sequence; `length` counts the tokens that every layer has."""

    def __init__(self, layer_count: int, prefix: KeyValuePrefix | None = None, *, reserve: int = 0) -> None:
        """Start empty, or with a copy of `prefix`, and make room for `reserve` more tokens."""
        self.length = prefix.length if prefix is not None else 0
        self._initial = prefix  # copied at the first extend: that happens in the worker thread, this doesn't
        self._reserve = reserve
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * layer_count

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (heads, n, head_dim) to one layer and return all of that layer so far; `length` doesn't move yet."""
        heads, count, dim = keys.shape
        needed = self.length + count
        stored = self._layers[layer]
        if stored is None or stored[0].shape[1] < needed:
            wanted = needed + self._reserve if stored is None else max(needed, int(self.length * GROWTH))
            capacity = -(-wanted // GRAIN_TOKENS) * GRAIN_TOKENS
            grown = (keys.new_empty((heads, capacity, dim)), values.new_empty((heads, capacity, dim)))
            source = self._initial.layers[layer] if stored is None and self._initial is not None else stored
            if source is not None:
                for new, old in zip(grown, source, strict=True):
                    new[:, : self.length] = old[:, : self.length]
            stored = self._layers[layer] = grown
        stored[0][:, self.length : needed] = keys
        stored[1][:, self.length : needed] = values
        return stored[0][:, :needed], stored[1][:, :needed]

    def commit(self, count: int) -> None:
        """Count `count` appended tokens in, after every layer got them."""
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        self.length = min(self.length, length)

    def prefix(self, length: int) -> KeyValuePrefix:
        """Views of the first `length` tokens; they stay valid when this object grows, since it only ever appends.

        After a `truncate` below `length` they don't: take prefixes of tokens that are final.
        """
        stored = tuple(pair for pair in self._layers if pair is not None)
        if len(stored) < len(self._layers):  # not extended yet: all there is, is what it started with
            assert self._initial is not None, "prefix() of an empty storage"
            return self._initial.cut(length)
        return KeyValuePrefix(stored, length).cut(length)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Which tokens of the packed row belong to which sequence: (storage, number of tokens) in order."""

    rows: tuple[tuple[KeyValues, int], ...]


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    packed: PackedRows,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in each layer, on (1, heads, tokens, head_dim)."""
    del attention_mask  # every row is causal over its own sequence: there is nothing else to mask
    out = attend_packed(module.layer_idx, query[0], key[0], value[0], scaling=scaling, packed=packed)
    return out.unsqueeze(0), None


def attend_packed(
    layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, packed: PackedRows
) -> Tensor:
    """Attention of (heads, tokens, head_dim) in one layer, each row over its own sequence; (tokens, heads, head_dim)."""
    outputs = []
    start = 0
    for storage, count in packed.rows:
        new = slice(start, start + count)
        past = storage.length
        keys, values = storage.extend(layer, key[:, new], value[:, new])
        outputs.append(_attend_row(query[:, new], keys, values, past, scaling))
        start += count
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)).transpose(0, 1)


def _attend_row(query: Tensor, keys: Tensor, values: Tensor, past: int, scaling: float) -> Tensor:
    """(heads, new, dim) attends to (kv_heads, past + new, dim), causally; returns (heads, new, dim)."""
    heads, new, dim = query.shape
    groups = heads // keys.shape[0]
    if new == 1:
        # One token sees everything. The heads that share keys become queries of one head: no keys are repeated.
        folded = query.reshape(-1, groups, dim).unsqueeze(0)
        out = functional.scaled_dot_product_attention(folded, keys.unsqueeze(0), values.unsqueeze(0), scale=scaling)
        return out.reshape(heads, 1, dim)
    fresh, fresh_weight = _flash(
        query,
        keys[:, past:].repeat_interleave(groups, 0),
        values[:, past:].repeat_interleave(groups, 0),
        scaling,
        causal=True,
    )
    if past == 0:
        return fresh
    folded = query.reshape(-1, groups * new, dim)
    old, old_weight = _flash(folded, keys[:, :past], values[:, :past], scaling, causal=False)
    # The two softmaxes join exactly by their log-sum-exps; a mask over (new, past + new) would cost ten times more.
    share = torch.sigmoid(old_weight.reshape(heads, new, 1) - fresh_weight.unsqueeze(-1)).to(fresh.dtype)
    return fresh + share * (old.reshape(heads, new, dim) - fresh)


def _flash(query: Tensor, keys: Tensor, values: Tensor, scaling: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of each query's scores."""
    out, log_weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the only one that returns the log-sum-exp
        query.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), 0.0, causal, scale=scaling
    )
    return out[0], log_weight[0].reshape(query.shape[0], query.shape[1])
