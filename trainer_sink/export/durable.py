"""Files that appear whole or not at all, and stay when the machine goes down."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """On the disk before the rename, so that a crash never leaves a torn file under the final name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; what is there at the block's end becomes `path`, unless the block raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        sync(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
