"""One stack for the end-to-end tests of a module, with the scripted test policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running stack; every process of it is gone afterwards."""
    state_dir: Path = tmp_path_factory.mktemp("stack")
    stack = Stack(state_dir)
    stack.up()
    pids = dict(stack.info.pids)
    try:
        yield stack
    finally:
        stack.down()
        assert stack.leftovers(pids) == []
