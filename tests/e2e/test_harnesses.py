"""Every harness on its default wire, live: a task of four turns with parallel calls, a call that fails, and unicode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import harnesses
from compose.cpu_engine.tiny_model import ensure_tiny_model
from compose.trial.script import STEPS
from tests.e2e.stack import Stack
from tests.e2e.trials import AT_ONCE, Trial, check, run_trials

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(900)]

DEFAULTS = [(adapter.name, adapter.dialect) for adapter in harnesses.list_harnesses() if adapter.install is not None]


@dataclass(frozen=True, slots=True)
class Tried:
    """The stack that they ran on, and all of them."""

    stack: Stack
    trials: dict[tuple[str, str], Trial]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Tried]:
    """All of them on one stack, two at a time."""
    with Stack(tmp_path_factory.mktemp("trials"), engine_url, env=AT_ONCE).running() as stack:
        yield Tried(stack, asyncio.run(run_trials(stack, DEFAULTS, timeout_s=900)))


@pytest.mark.parametrize("pair", DEFAULTS, ids="-".join)
def test_a_harness_passes_its_trial(tried: Tried, pair: tuple[str, str]) -> None:
    """The task is solved with the harness' own tools, in exactly as many model calls as it has turns, all in one trace."""
    assert pair in tried.trials, f"{pair} was not scored\n{tried.stack.logs()}"
    check(tried.trials[pair])


def test_verify_passes_over_all_of_them(tried: Tried) -> None:
    """What each harness' run is trained on is what the model says: every token of every session, recomputed, within 1e-4."""
    verified = tried.stack.cli(
        "verify", "trajectory.scored", "--model", str(ensure_tiny_model()), "--json", check=False
    )
    report = json.loads(verified.stdout)
    trained = sum(
        trial.scored.trajectory.counts.trainable_tokens
        for trial in tried.trials.values()
        if trial.scored.trajectory is not None
    )
    (version,) = report["versions"].values()
    assert (report["unchecked"], report["deviations"]) == ([], [])
    assert version["largest"] <= 1e-4
    assert version["checked"] >= trained > 0
    assert report["traces"] >= len(DEFAULTS)
    assert verified.returncode == 0


def test_try_gives_a_verdict(tried: Tried) -> None:
    """`polynya harness try` runs one attached session by hand and tells calls, merged turns, exit code and time."""
    outcome = json.loads(tried.stack.cli("harness", "try", "pi", "--wire", "anthropic", "--json").stdout)
    assert outcome["succeeded"], outcome
    assert (outcome["calls"], outcome["trained"], outcome["turns_per_trace"]) == (STEPS, STEPS, [STEPS])
    assert (outcome["exit_code"], outcome["reward"]) == (0, 1.0)
    said = tried.stack.cli("harness", "try", "codex").stdout
    assert f"turns merged: {STEPS} (in 1 trace(s))" in said
    assert "verdict: good" in said


def test_try_tells_a_bad_run(tried: Tried) -> None:
    """A harness that fails is a verdict with its own words, exit code 1, and a session with reward 0."""
    bad = ("harness", "try", "shell", "--options", '{"command": "echo no luck >&2; exit 7"}', "--json")
    done = tried.stack.cli(*bad, check=False)
    assert done.returncode == 1
    outcome = json.loads(done.stdout)
    assert (outcome["succeeded"], outcome["exit_code"], outcome["reward"], outcome["calls"]) == (False, 7, 0.0, 0)
    assert "it exited with 7; it said: no luck" in done.stderr.replace("\n", " ")
