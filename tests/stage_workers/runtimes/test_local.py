"""Runtime `local` does what every runtime must, with a network of its own and without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas.task import RuntimeSpec
from stage_workers.runtimes.checks import Bench
from stage_workers.runtimes.factory import Runtimes
from tests.stage_workers.runtimes.base import RuntimeTests


class TestIsolated(RuntimeTests):
    """In namespaces of its own."""

    # Root isn't bound by a limit of processes; an ordinary user may not be allowed any namespace.
    may_lack = frozenset({"process_limit"} if os.geteuid() == 0 else {"nothing_else_is_reached"})

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        make = Runtimes(root=tmp_path, owner="tests/one", grace_s=0.3, isolates_local=True)
        return Bench(make=make, spec=RuntimeSpec())


class TestShared(RuntimeTests):
    """With the machine's own network."""

    may_lack = frozenset({"process_limit", "nothing_else_is_reached"})

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        make = Runtimes(root=tmp_path, owner="tests/one", grace_s=0.3, isolates_local=True)
        return Bench(make=make, spec=RuntimeSpec(network="egress"))
