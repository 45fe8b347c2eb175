"""A small Qwen3 model's forward pass in few operations.

One token of a model of a million parameters takes microseconds to compute, and ten times as long to be led through
transformers' modules. Same weights and arithmetic, with products of one input joined and without anything between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from compose.cpu_engine.ragged import PackedRows, attend_packed

MOST_PARAMETERS: Final = 50_000_000
"""Above, the time goes into the products, and a second copy of the weights would be large."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights; matrices as (in, out), those of one input side by side."""

    norm_in: Tensor
    qkv: Tensor
    norm_heads: Tensor  # (heads + kv_heads, 1 head's width): queries' and keys'
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class LeanDecoder:
    """Hidden states of packed rows, as the model's own module computes them (to rounding)."""

    def __init__(self, module: Any) -> None:
        """Take the weights of a module for which `is_lean` holds."""
        config, base = module.config, module.base_model
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._width: int = config.head_dim
        self._eps: float = config.rms_norm_eps
        self._embedding: Tensor = base.embed_tokens.weight
        self._norm: Tensor = base.norm.weight
        self._frequencies: Tensor = base.rotary_emb.inv_freq.float()
        self._layers = [self._layer(layer) for layer in base.layers]

    def _layer(self, layer: Any) -> _Layer:
        own, mlp = layer.self_attn, layer.mlp
        return _Layer(
            norm_in=layer.input_layernorm.weight,
            qkv=torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight]).t(),
            norm_heads=torch.cat(
                [own.q_norm.weight.expand(self._heads, -1), own.k_norm.weight.expand(self._kv_heads, -1)]
            ),
            out=own.o_proj.weight.t(),
            norm_mlp=layer.post_attention_layernorm.weight,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).t(),
            down=mlp.down_proj.weight.t(),
        )

    def __call__(self, ids: list[int], positions: list[int], packed: PackedRows) -> Tensor:
        """(tokens, width) for the packed tokens; each row's storage is extended, not yet committed."""
        x = functional.embedding(torch.tensor(ids), self._embedding)
        angles = torch.tensor(positions, dtype=torch.float32).unsqueeze(1) * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        # Half a head's width further stands what a number is turned with; the first half with the sign changed.
        turn = torch.cat([cos, cos], 1).unsqueeze(1), torch.cat([-sin, sin], 1).unsqueeze(1)
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, self._normed(x, layer.norm_in), turn, packed)
            gate, up = (self._normed(x, layer.norm_mlp) @ layer.gate_up).chunk(2, 1)
            x = torch.addmm(x, functional.silu(gate) * up, layer.down)
        return self._normed(x, self._norm)

    def _attention(
        self, index: int, layer: _Layer, x: Tensor, turn: tuple[Tensor, Tensor], packed: PackedRows
    ) -> Tensor:
        count, turned = x.shape[0], self._heads + self._kv_heads
        heads = (x @ layer.qkv).view(count, turned + self._kv_heads, self._width)
        cos, sin = turn
        placed = self._normed(heads[:, :turned], layer.norm_heads)
        placed = torch.addcmul(placed * cos, placed.roll(self._width // 2, 2), sin).transpose(0, 1)
        attended = attend_packed(
            index,
            placed[: self._heads],
            placed[self._heads :],
            heads[:, turned:].transpose(0, 1),
            scaling=self._width**-0.5,
            packed=packed,
        )
        return attended.reshape(count, -1) @ layer.out

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self._eps))


def is_lean(module: Any) -> bool:
    """Whether the model is a small Qwen3 in the plain form that is written down here."""
    config = module.config
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type == "qwen3"
        and config.hidden_act == "silu"
        and not config.attention_bias
        and rope.get("rope_type", "default") == "default"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and sum(p.numel() for p in module.parameters()) <= MOST_PARAMETERS
    )
