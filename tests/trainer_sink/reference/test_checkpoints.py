"""Checkpoints: whole or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from trainer_sink.reference import CheckpointError
from trainer_sink.reference.checkpoints import STATE, Checkpoints, RunState


def state(step: int) -> RunState:
    """What stands beside a step's weights."""
    return RunState(
        step=step,
        sink={"format": 1, "partitions": {"0": {"watermark": 7}}},
        weights_digest="d",
        from_version=str(step),
        rewards=[0.1, 0.25],
        baseline=None,
        trainer_id="t",
        policy_id="p",
    )


def write(checkpoints: Checkpoints, step: int) -> Path:
    """A checkpoint with one weight file."""

    def fill(directory: Path) -> RunState:
        (directory / "model.safetensors").write_text(f"weights {step}")
        return state(step)

    return checkpoints.write(step, fill)


def test_the_newest_is_found_with_its_state(tmp_path: Path) -> None:
    """As it was written, by another process, too."""
    assert Checkpoints(tmp_path).latest() is None
    write(Checkpoints(tmp_path), 1)
    path = write(Checkpoints(tmp_path), 2)
    again = Checkpoints(tmp_path)
    assert again.latest() == path
    assert again.state(path) == state(2)
    assert (path / "model.safetensors").read_text() == "weights 2"


def test_a_crash_while_writing_leaves_the_old_one(tmp_path: Path) -> None:
    """Half a checkpoint is never named, and the next one clears it away."""
    checkpoints = Checkpoints(tmp_path)
    old = write(checkpoints, 1)

    def dies(directory: Path) -> RunState:
        (directory / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(2, dies)
    assert Checkpoints(tmp_path).latest() == old
    new = write(Checkpoints(tmp_path), 2)
    assert (new / "model.safetensors").read_text() == "weights 2"
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["latest", "step-000001", "step-000002"]


def test_a_crash_between_renaming_and_naming_leaves_the_old_one(tmp_path: Path) -> None:
    """The step's directory stands there already: writing it again replaces it."""
    checkpoints = Checkpoints(tmp_path)
    old = write(checkpoints, 1)
    write(checkpoints, 2)
    (checkpoints.folder / "latest").write_text(old.name)
    assert checkpoints.latest() == old
    assert write(checkpoints, 2) == checkpoints.latest()


def test_old_ones_are_removed(tmp_path: Path) -> None:
    """As many as asked are kept."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (9, 10, 11):
        write(checkpoints, step)
    assert sorted(p.name for p in checkpoints.folder.glob("step-*")) == ["step-000010", "step-000011"]


def test_damage_is_told_with_what_to_do(tmp_path: Path) -> None:
    """A missing directory, a torn state and a foreign format each say so."""
    checkpoints = Checkpoints(tmp_path)
    path = write(checkpoints, 1)
    (path / STATE).write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoints.state(path)
    (path / STATE).write_bytes(dataclasses.replace(state(1), format=2).to_bytes())
    with pytest.raises(CheckpointError, match="format 2"):
        checkpoints.state(path)
    (checkpoints.folder / "latest").write_text("step-000009")
    with pytest.raises(CheckpointError, match="isn't there"):
        checkpoints.latest()
