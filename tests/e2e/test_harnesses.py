"""Every harness on its default wire, live: a task of four turns with parallel calls, a call that fails, and unicode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import harnesses
from tests.e2e.stack import Stack
from tests.e2e.trials import AT_ONCE, Trial, check, run_trials

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(900)]

DEFAULTS = [(adapter.name, adapter.dialect) for adapter in harnesses.list_harnesses() if adapter.install is not None]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[dict[tuple[str, str], Trial]]:
    """All of them on one stack, two at a time."""
    with Stack(tmp_path_factory.mktemp("trials"), engine_url, env=AT_ONCE).running() as stack:
        yield asyncio.run(run_trials(stack, DEFAULTS, timeout_s=600))


@pytest.mark.parametrize("pair", DEFAULTS, ids="-".join)
def test_a_harness_passes_its_trial(trials: dict[tuple[str, str], Trial], pair: tuple[str, str]) -> None:
    """The task is solved with the harness' own tools, in exactly as many model calls as it has turns, all in one trace."""
    assert pair in trials, f"{pair} was not scored"
    check(trials[pair])
