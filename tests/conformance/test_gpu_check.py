"""The check for machines with a GPU, as far as it can be told without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance import gpu_check


def test_calls_are_counted_from_the_topics_lines() -> None:
    """Openings, deliveries and seals are no calls."""
    call = {"call_seq": 1, "output_ids": [1, 2]}
    lines = [
        {"topic": "capture.completions", "record": {"writer": 1}},
        {"topic": "capture.completions", "record": {**call, "trainable": True}},
        {"topic": "capture.completions", "record": {**call, "trainable": False}},
        {"topic": "capture.completions", "record": {"call_seq": 1, "delivered": True}},
        {"topic": "capture.completions"},
    ]
    text = "\n".join(["a warning", *(json.dumps(line) for line in lines)])
    assert gpu_check.count_calls(text) == (2, 1)


async def test_a_machine_without_a_gpu_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, and the command that checks on a CPU."""
    monkeypatch.setattr(gpu_check, "find_device", lambda: "cpu")
    assert await gpu_check.main(None) == 3
    assert "make conformance-sglang" in capsys.readouterr().err


def test_the_largest_real_model_at_hand_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named one first; then the cache's, without the tiny ones that we make."""
    monkeypatch.setattr(gpu_check, "cache_root", lambda: tmp_path)
    for name, size in (("tiny-x", 900), ("small", 10), ("large", 100)):
        directory = tmp_path / "models" / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(b"0" * size)
    assert gpu_check.find_model(None) == (tmp_path / "models" / "large", True)
    assert gpu_check.find_model(str(tmp_path)) == (tmp_path, True)
