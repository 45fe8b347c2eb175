"""A Hugging Face causal language model, run over packed rows; weights can be exchanged between two steps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compose.cpu_engine.lean import LeanDecoder, is_lean
from compose.cpu_engine.ragged import ATTENTION_NAME, KeyValues, PackedRows, attend
from compose.cpu_engine.sampling import Draw, Head, SamplingRule, Top


class ModelError(ValueError):
    """A model directory that this engine can't serve; the message names the directory and the reason."""


@dataclass(slots=True)
class Row:
    """One sequence's part of a step: tokens to compute and what to do at the last of them.

    `targets` are the known tokens that follow the last `len(targets)` of `ids`: their log-probabilities are asked for.
    With `sample` one token is drawn after the last of `ids`. Never both.
    """

    storage: KeyValues
    ids: list[int]
    rule: SamplingRule
    targets: list[int]
    sample: bool = False
    generator: torch.Generator | None = None
    top: int = 0
    """How many of the likeliest tokens are wanted at each of these places."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """Ids (drawn, or the targets) with their log-probabilities and the likeliest tokens, as many as were asked for."""

    ids: list[int]
    logprobs: list[float]
    tops: list[Top]


class Model:
    """A loaded model. `step` and `load_weights` block: call them from one worker thread only."""

    def __init__(self, path: Path) -> None:
        """Load `path`; raises `ModelError` when it isn't a directory with a model that this engine can serve."""
        self.path = path
        self._take(_load(path))
        config = self._module.config.get_text_config()
        self.layer_count: int = config.num_hidden_layers
        self.vocab_size: int = config.vocab_size
        self.context_length: int = config.max_position_embeddings
        self.model_type: str = config.model_type
        self.architectures: list[str] = list(self._module.config.architectures or [])
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.bytes_per_cached_token: int = 2 * self.layer_count * kv_heads * head_dim * self._module.dtype.itemsize
        self.eos_ids: frozenset[int] = _eos_ids(self._module)

    def storage(self) -> KeyValues:
        """Empty key-value storage for a new sequence."""
        return KeyValues(self.layer_count)

    @torch.inference_mode()
    def step(self, rows: list[Row]) -> list[RowResult]:
        """Compute all rows in one forward pass; each row's storage grows by its ids."""
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []  # indices into the packed tokens whose logits are needed: nothing else gets any
        draws: list[Draw] = []
        for row in rows:
            ids.extend(row.ids)
            positions.extend(range(row.storage.length, row.storage.length + len(row.ids)))
            if row.sample:
                wanted.append(len(ids) - 1)
                draws.append(Draw(row.rule, row.generator, top=row.top))
            else:
                wanted.extend(range(len(ids) - len(row.targets), len(ids)))
                draws.extend(Draw(row.rule, target=target, top=row.top) for target in row.targets)
        hidden = self._hidden(ids, positions, PackedRows(tuple((row.storage, len(row.ids)) for row in rows)))
        drawn, logprobs, tops = self._head.draw(hidden[wanted], draws)
        results = []
        start = 0
        for row in rows:
            row.storage.commit(len(row.ids))
            end = start + (1 if row.sample else len(row.targets))
            results.append(RowResult(drawn[start:end], logprobs[start:end], tops[start:end]))
            start = end
        return results

    def load_weights(self, path: Path) -> None:
        """Exchange the weights for those in `path`; on `ModelError` the old ones stay in force."""
        module = _load(path)
        old = {name: tuple(value.shape) for name, value in self._module.named_parameters()}
        new = {name: tuple(value.shape) for name, value in module.named_parameters()}
        if old != new:
            differing = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
            raise ModelError(
                f"{path} holds another architecture than the running model: {', '.join(differing[:3])} differ"
            )
        self._take(module)
        self.path = path

    def _take(self, module: Any) -> None:
        self._module = module
        self._head = Head(module.get_output_embeddings().weight)
        self._lean = LeanDecoder(module) if is_lean(module) else None

    def _hidden(self, ids: list[int], positions: list[int], packed: PackedRows) -> torch.Tensor:
        if self._lean is not None:
            return self._lean(ids, positions, packed)
        out = self._module.base_model(
            input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]), use_cache=False, packed=packed
        )
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden


def _load(path: Path) -> Any:
    if not path.is_dir():  # transformers would take the name for one on a hub
        raise ModelError(f"no such model directory: {path}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AttentionInterface, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    AttentionInterface.register(ATTENTION_NAME, attend)
    try:
        module: Any = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, attn_implementation=ATTENTION_NAME, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, RuntimeError) as exc:
        raise ModelError(f"{path} can't be loaded: {exc}") from exc
    config = module.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    unsupported = [
        *sorted(kinds - {"full_attention"}),
        *(
            name
            for name in ("final_logit_softcapping", "attn_logit_softcapping", "logits_scaling")
            if getattr(config, name, None)
        ),
    ]
    if unsupported:
        raise ModelError(f"{path} needs {', '.join(unsupported)}, which this engine doesn't have; serve it with SGLang")
    return module.eval().requires_grad_(requires_grad=False)


def _eos_ids(module: Any) -> frozenset[int]:
    found: set[int] = set()
    for source in (module.generation_config, module.config.get_text_config()):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            found.update(value if isinstance(value, (list, tuple)) else [value])
    return frozenset(found)
