"""Digests of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_sink.policies.digest import digest_of
from trainer_sink.policies.errors import PolicyError


def checkpoint(root: Path, name: str, weights: bytes, config: bytes = b"{}") -> Path:
    """A directory with weights and a config."""
    path = root / name
    path.mkdir()
    (path / "model.safetensors").write_bytes(weights)
    (path / "config.json").write_bytes(config)
    return path


def test_it_names_the_weights_and_nothing_else(tmp_path: Path) -> None:
    """The same weights elsewhere, beside another config, have the same digest; other weights have another."""
    one = digest_of(checkpoint(tmp_path, "one", b"w"))
    assert digest_of(checkpoint(tmp_path, "two", b"w", b'{"a": 1}')) == one
    assert digest_of(checkpoint(tmp_path, "three", b"v")) != one
    assert len(one) == 64


def test_weights_that_moved_between_two_files_are_others(tmp_path: Path) -> None:
    """Names and borders of files count."""
    one, two = checkpoint(tmp_path, "one", b"ab"), checkpoint(tmp_path, "two", b"a")
    (two / "model-2.safetensors").write_bytes(b"b")
    assert digest_of(one) != digest_of(two)


def test_no_checkpoint_is_an_error_that_says_where(tmp_path: Path) -> None:
    """A directory that isn't there, or has nothing in it."""
    with pytest.raises(PolicyError, match="there is no checkpoint at /no/such"):
        digest_of(Path("/no/such"))
    with pytest.raises(PolicyError, match="is empty"):
        digest_of(tmp_path)
