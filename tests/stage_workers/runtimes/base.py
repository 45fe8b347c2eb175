"""What every runtime's tests have in common: the checks of the package, one test each."""

from __future__ import annotations

import os

import pytest

from stage_workers.runtimes.checks import CHECKS, Bench, Check, NotHere


class RuntimeTests:
    """Subclasses give a `bench`; what they can't have here they name in `may_lack`, everything else must hold in CI."""

    may_lack: frozenset[str] = frozenset()

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
    async def test_check(self, check: Check, bench: Bench) -> None:
        """The runtime does what the check says."""
        assert check.meaning
        try:
            await check.run(bench)
        except NotHere as reason:
            if os.environ.get("CI") and check.name not in self.may_lack:
                pytest.fail(f"{check.name} can't be tried here: {reason}")
            pytest.skip(f"{check.name}: {reason}")
