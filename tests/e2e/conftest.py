"""One stack for the end-to-end tests of a module, with the scripted test policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A running stack; every process of it is gone afterwards."""
    state_dir: Path = tmp_path_factory.mktemp("stack")
    with Stack(state_dir, engine_url).running() as stack:
        yield stack
