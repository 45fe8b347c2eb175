"""The model under training: loaded, saved, and what is beside its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer_sink.reference.tiny import VOCAB, sequence
from trainer_sink.reference import CheckpointError, GrpoSettings, ModelLoadError, TrainerError
from trainer_sink.reference.checkpoints import OPTIMIZER
from trainer_sink.reference.learner import Learner
from trainer_sink.reference.model import PolicyModel


def test_a_saved_model_is_the_same_and_has_the_files_beside_it(model_dir: Path, tmp_path: Path) -> None:
    """Also when the directory that it was loaded from is gone: a run removes the checkpoint that it was resumed from."""
    source, saved = tmp_path / "source", tmp_path / "saved"
    shutil.copytree(model_dir, source)
    (source / "trainer").mkdir()
    model = PolicyModel.load(source)
    shutil.rmtree(source)
    saved.mkdir()
    model.save(saved)
    assert (saved / "model.safetensors").read_bytes() == (model_dir / "model.safetensors").read_bytes()
    assert (saved / "tokenizer.json").read_text() == "{}"
    again = PolicyModel.load(saved)
    for one, other in zip(model.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_bfloat16_is_what_is_saved_and_the_trained_weights_are_kept_beside(model_dir: Path, tmp_path: Path) -> None:
    """An engine in bfloat16 gets what the trainer computes with; a restart has the float32 weights again."""
    model = PolicyModel.load(model_dir, dtype="bfloat16")
    model.save(tmp_path)
    assert {value.dtype for value in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    rounded = PolicyModel.load(tmp_path, dtype="bfloat16")
    first = next(iter(model.module.parameters()))
    assert not torch.equal(first, next(iter(rounded.module.parameters())))
    rounded.restore_master(model.master())
    assert torch.equal(first, next(iter(rounded.module.parameters())))
    assert PolicyModel.load(model_dir).master() == {}


@pytest.mark.parametrize("content", [None, "{}"])
def test_what_is_no_model_is_refused(tmp_path: Path, content: str | None) -> None:
    """Without a look at any hub, and with the directory's name."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        PolicyModel.load(tmp_path)


def test_torn_files_are_told_with_their_directory(model_dir: Path, tmp_path: Path) -> None:
    """Weights, or an optimizer's state, of which half is there; and tokens of another tokenizer than the model's."""
    torn = shutil.copytree(model_dir, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=f"{torn} can't be loaded"):
        PolicyModel.load(torn)
    half = shutil.copytree(model_dir, tmp_path / "half")
    (half / OPTIMIZER).parent.mkdir()
    (half / OPTIMIZER).write_bytes(b"PK")
    settings = GrpoSettings(model=model_dir, output_dir=tmp_path)
    with pytest.raises(CheckpointError, match=f"{half / OPTIMIZER} is damaged"):
        Learner.load(settings, half)
    learner = Learner.load(settings, None)
    with pytest.raises(TrainerError, match=rf"session s trace 0 has token {VOCAB}, the model knows 0 … {VOCAB - 1}"):
        learner.update([sequence([1], [VOCAB], advantage=1.0)], 1, "0", lambda *_: None)
