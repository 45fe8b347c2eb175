"""Faults at the engine, met by real CLIs: nothing hangs, nothing loops, nothing broken is trained, and nothing changes unnoticed."""

from __future__ import annotations

import asyncio

import pytest

from schemas.records import CompletionState
from tests.faults.faults import FAULTS, FAULTY_CALL
from tests.faults.findings import finding, is_done
from tests.faults.page import PATH, comparable, write_page
from tests.faults.task import SECOND
from tests.faults.trials import CLIS, Trial, run_trials

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]

PAIRS = [(name, fault.name) for name in CLIS for fault in FAULTS]
MOST_CALLS = 8
"""The script needs three; one failed call, and what a harness asks beside or once more. Beyond that it loops."""

each = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


@pytest.fixture(scope="module")
def trials() -> dict[tuple[str, str], Trial]:
    """Every CLI into every fault, before one proxy."""
    return asyncio.run(run_trials())


@each
def test_it_neither_hangs_nor_loops(trials: dict[tuple[str, str], Trial], pair: tuple[str, str]) -> None:
    """Whatever the engine does once, the CLI comes to an end by itself, within its time and a handful of calls."""
    trial = trials[pair]
    assert not trial.run.result.timed_out, trial.report()
    assert FAULTY_CALL <= len(trial.calls) <= MOST_CALLS, trial.report()


@each
def test_every_call_is_recorded_once_and_sampled_once(
    trials: dict[tuple[str, str], Trial], pair: tuple[str, str]
) -> None:
    """One record per call up to the seal's number; the proxy asks the engine once for each, and every end reached the CLI."""
    trial = trials[pair]
    numbers = list(range(1, trial.seal.last_seq + 1))
    assert [call.call_seq for call in trial.calls] == numbers, trial.report()
    assert set(trial.asked.values()) == {1}, trial.asked
    assert sorted(fact.call_seq for fact in trial.deliveries if fact.delivered) == numbers, trial.report()


@each
def test_a_failed_call_is_not_trained(trials: dict[tuple[str, str], Trial], pair: tuple[str, str]) -> None:
    """The faulty call is failed where the engine failed, with the reason; no other call is."""
    trial = trials[pair]
    failed = [call for call in trial.calls if call.state is not CompletionState.FINISHED]
    is_failing = trial.fault.kind in {"refuse", "cut"}
    assert [call.call_seq for call in failed] == ([FAULTY_CALL] if is_failing else []), trial.report()
    for call in failed:
        assert (call.state, call.trainable, call.finish_reason) == (CompletionState.FAILED, False, "")
        assert call.untrainable_reason == ("busy" if trial.fault.status == 429 else "failed")
        assert (call.text, call.tool_calls) == ("", [])
    counts = trial.trajectory.counts
    assert counts.untrainable.get("failed", 0) == len(failed), trial.report()
    # Asked again after a reply that was whole, but of no use to the CLI: what it got then is the answer.
    rest = {reason for reason in counts.untrainable if reason != "failed"}
    assert rest <= ({"superseded"} if trial.fault.reply == "empty" else set()), trial.report()
    assert counts.trained + sum(counts.untrainable.values()) == len(trial.calls), trial.report()


@each
def test_a_call_that_is_not_whole_is_not_made(trials: dict[tuple[str, str], Trial], pair: tuple[str, str]) -> None:
    """What was cut or isn't JSON is the text that was sampled: no tool runs on it, unless the model asks again."""
    trial = trials[pair]
    faulty = trial.calls[FAULTY_CALL - 1]
    if trial.fault.reply in {"malformed", "length"}:
        assert faulty.tool_calls == []
        assert "<tool_call>" in faulty.text
        assert faulty.finish_reason == ("length" if trial.fault.reply == "length" else "stop")
    commands = sum(SECOND in str(made) for call in trial.calls for made in call.tool_calls)
    assert (SECOND in trial.run.files) == (commands > 0), trial.report()


@each
def test_success_is_not_reported_over_a_failed_call(
    trials: dict[tuple[str, str], Trial], pair: tuple[str, str]
) -> None:
    """After a call that failed, a run either solves its task or says that it failed; a stall costs nothing but time."""
    trial = trials[pair]
    if trial.fault.kind in {"refuse", "cut"}:
        assert trial.run.verdict.succeeded == is_done(trial), trial.report()
    if trial.fault.kind == "stall":
        assert is_done(trial), trial.report()
        assert len(trial.calls) == FAULTY_CALL, trial.report()


def test_the_page_says_what_happens(trials: dict[tuple[str, str], Trial]) -> None:
    """The committed table is what was seen now, but for the times; `make fault-table` writes it anew."""
    now = write_page({(name, fault.name): finding(trials[name, fault.name]) for fault in FAULTS for name in CLIS})
    assert comparable(PATH.read_text(encoding="utf-8")) == comparable(now)
