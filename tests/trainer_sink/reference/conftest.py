"""What the reference trainer's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer_sink.reference.tiny import write_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint; torch is imported when a test first asks for it."""
    import torch

    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("model"))
