"""Every harness on every wire that it speaks beside its default one; `make test-all-wires`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import harnesses
from tests.e2e.stack import Stack
from tests.e2e.trials import AT_ONCE, Trial, check, run_trials

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.all_wires, pytest.mark.timeout(1800)]

PAIRS = [
    (adapter.name, wire)
    for adapter in harnesses.list_harnesses()
    if adapter.install is not None
    for wire in adapter.dialects[1:]
]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[dict[tuple[str, str], Trial]]:
    """All of them on one stack, two at a time."""
    with Stack(tmp_path_factory.mktemp("wires"), engine_url, env=AT_ONCE).running() as stack:
        yield asyncio.run(run_trials(stack, PAIRS, timeout_s=1200))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_harness_passes_its_trial_on_another_wire(
    trials: dict[tuple[str, str], Trial], pair: tuple[str, str]
) -> None:
    """The same task, the same number of calls, one trace, in every API that the harness can speak."""
    assert pair in trials, f"{pair} was not scored"
    check(trials[pair])
