"""What a checkpoint's weights are, by their bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from trainer_sink.policies.errors import PolicyError

_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".gguf")


def digest_of(path: Path) -> str:
    """SHA-256 over the names and bytes of a checkpoint's weight files, in hex; of all its files where none looks like weights.

    It reads the whole checkpoint (about a second per GB): a trainer that knows its own digest passes that instead. Blocking.
    """
    if not path.is_dir():
        raise PolicyError(f"there is no checkpoint at {path}: save one there, then push it")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    weights = [file for file in files if file.suffix in _SUFFIXES] or files
    if not weights:
        raise PolicyError(f"the checkpoint at {path} is empty")
    whole = hashlib.sha256()
    for file in weights:
        with file.open("rb") as opened:
            part = hashlib.file_digest(opened, "sha256")
        whole.update(f"{file.relative_to(path)}\0{part.hexdigest()}\n".encode())
    return whole.hexdigest()
