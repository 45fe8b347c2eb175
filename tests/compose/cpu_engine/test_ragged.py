from __future__ import annotations

from typing import Any

import pytest
import torch

from compose.cpu_engine.model import Model, Row
from compose.cpu_engine.ragged import KeyValues
from compose.cpu_engine.sampling import SamplingRule

RULE = SamplingRule(temperature=0.7)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any]:
    """A two-layer model whose four heads share two key heads, and transformers' own version of it."""
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    path = tmp_path_factory.mktemp("grouped")
    config = Qwen3Config(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=2048, initializer_range=0.2, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        Qwen3ForCausalLM(config).save_pretrained(path)
    return Model(path), AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def ids_of(count: int, seed: int) -> list[int]:
    return torch.randint(0, 300, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def reference(module: Any, ids: list[int]) -> list[float]:
    with torch.inference_mode():
        logprobs = (module(torch.tensor([ids])).logits[0] / RULE.temperature).log_softmax(-1)
    return [float(logprobs[i, token]) for i, token in enumerate(ids[1:])]


def test_a_prompt_in_one_piece_equals_transformers(grouped: tuple[Model, Any]) -> None:
    """All log-probabilities of a whole sequence are those of transformers' own attention."""
    model, module = grouped
    ids = ids_of(400, 1)
    result = model.step([Row(model.storage(), ids[:-1], RULE, ids[1:])])[0]
    assert result.ids == ids[1:]
    assert result.logprobs == pytest.approx(reference(module, ids), abs=1e-4)


def test_pieces_of_any_size_beside_other_rows_equal_transformers(grouped: tuple[Model, Any]) -> None:
    """Neither chunked prompts, nor single tokens, nor other requests in the same step change a result."""
    model, module = grouped
    ids, other = ids_of(301, 2), ids_of(40, 3)
    storage, found = model.storage(), []
    for begin, end in ((0, 100), (100, 101), (101, 102), (102, 290), (290, 300)):
        rows = [
            Row(model.storage(), other[:-1], RULE, other[1:]),
            Row(storage, ids[begin:end], RULE, ids[begin + 1 : end + 1]),
            Row(model.storage(), other[:1], RULE, [], sample=True, generator=torch.Generator().manual_seed(0)),
        ]
        results = model.step(rows)
        found += results[1].logprobs
        assert results[0].logprobs == pytest.approx(reference(module, other), abs=1e-4)
    assert storage.length == 300
    assert found == pytest.approx(reference(module, ids), abs=1e-4)


def test_going_on_from_a_copied_prefix_equals_starting_over(grouped: tuple[Model, Any]) -> None:
    """A sequence that begins with another one's keys and values gets the same results, and leaves the other one alone."""
    model, module = grouped
    shared, first, second = ids_of(128, 4), ids_of(50, 5), ids_of(50, 6)
    storage = model.storage()
    model.step([Row(storage, shared, RULE, [])])
    prefix = storage.prefix(128)
    found = {}
    for name, tail in (("first", first), ("second", second)):
        copy = KeyValues(model.layer_count, prefix, reserve=3)
        ids = shared + tail
        assert copy.length == 128
        found[name] = model.step([Row(copy, tail[:-1], RULE, tail[1:])])[0].logprobs
        assert found[name] == pytest.approx(reference(module, ids)[128:], abs=1e-4)
    again = model.step([Row(storage, first[:-1], RULE, first[1:])])[0].logprobs
    assert again == pytest.approx(found["first"], abs=1e-5)


def test_prefix_views_survive_growth() -> None:
    """A prefix taken before its storage grows many times over still shows the same numbers."""
    storage = KeyValues(1)
    storage.extend(0, torch.full((1, 4, 2), 1.0), torch.full((1, 4, 2), 2.0))
    storage.commit(4)
    prefix = storage.prefix(3)
    for value in range(200):
        storage.extend(0, torch.full((1, 1, 2), float(value)), torch.full((1, 1, 2), float(value)))
        storage.commit(1)
    assert storage.length == 204
    keys, values = prefix.layers[0]
    assert keys.tolist() == [[[1.0, 1.0]] * 3]
    assert values.tolist() == [[[2.0, 2.0]] * 3]
    assert storage.prefix(204).layers[0][0][0, 3:6, 0].tolist() == [1.0, 0.0, 1.0]


def test_a_storage_never_extended_gives_back_what_it_started_with() -> None:
    """A request aborted before its first step can still hand its prefix back."""
    storage = KeyValues(1)
    storage.extend(0, torch.ones((1, 4, 2)), torch.ones((1, 4, 2)))
    storage.commit(4)
    assert KeyValues(1, storage.prefix(4)).prefix(2).layers[0][0].shape == (1, 2, 2)


def test_truncate_then_extend_replaces_the_tail() -> None:
    """After a truncation new tokens take the place of the forgotten ones."""
    storage = KeyValues(1)
    storage.extend(0, torch.arange(4.0).reshape(1, 4, 1), torch.arange(4.0).reshape(1, 4, 1))
    storage.commit(4)
    storage.truncate(2)
    keys, _ = storage.extend(0, torch.full((1, 1, 1), 9.0), torch.full((1, 1, 1), 9.0))
    storage.commit(1)
    assert keys.flatten().tolist() == [0.0, 1.0, 9.0]
    assert storage.length == 3
