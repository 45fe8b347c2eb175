"""The lean forward pass computes what the model's own module does, and is taken only where it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from compose.cpu_engine import lean
from compose.cpu_engine.model import Model
from compose.cpu_engine.ragged import PackedRows

ROW = [5, 9, 200, 31, 4, 4, 77]


def config(**changes: Any) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        **{
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "initializer_range": 0.2,
            "tie_word_embeddings": False,
            **changes,
        }
    )


def saved(path: Path, seed: int) -> Path:
    """A model's directory whose norms' weights differ from one, too."""
    from transformers import Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Qwen3ForCausalLM(config())
        for name, weight in module.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(weight, 0.5, 1.5)
        module.save_pretrained(path)
    return path


def hidden(model: Model, *, is_lean: bool) -> torch.Tensor:
    """Of a prompt, then of one token after it beside another sequence's prompt."""
    kept, model._lean = model._lean, model._lean if is_lean else None
    first, second = model.storage(), model.storage()
    with torch.inference_mode():
        begun = model._hidden(ROW, list(range(len(ROW))), PackedRows(((first, len(ROW)),)))
        first.commit(len(ROW))
        packed = PackedRows(((first, 1), (second, 3)))
        more = model._hidden([8, *ROW[:3]], [len(ROW), 0, 1, 2], packed)
    model._lean = kept
    return torch.cat([begun, more])


def test_it_equals_the_module(tmp_path: Path) -> None:
    """Hidden states of prompts and of single tokens are the module's to rounding, also after an exchange of weights."""
    model = Model(saved(tmp_path / "one", 1))
    before = hidden(model, is_lean=True)
    torch.testing.assert_close(before, hidden(model, is_lean=False), atol=2e-5, rtol=1e-4)
    model.load_weights(saved(tmp_path / "two", 2))
    after = hidden(model, is_lean=True)
    torch.testing.assert_close(after, hidden(model, is_lean=False), atol=2e-5, rtol=1e-4)
    assert (before - after).abs().max() > 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_form_is_left_to_its_module(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't written down in the lean pass isn't computed by it, nor is a model that is large."""
    from transformers import Qwen3ForCausalLM

    plain = Qwen3ForCausalLM(config())
    assert lean.is_lean(plain)
    assert not lean.is_lean(Qwen3ForCausalLM(config(**changes)))
    monkeypatch.setattr(lean, "MOST_PARAMETERS", 1000)
    assert not lean.is_lean(plain)
