"""Judging a run by its exit code and its own events."""

from __future__ import annotations

import json

import pytest

import harnesses
from harnesses.verdict import Judge


def judge(name: str, events: list[object]) -> Judge:
    made = Judge(harnesses.get(name).verdict)
    for event in events:
        made.feed(event if isinstance(event, bytes) else json.dumps(event, separators=(",", ":")).encode())
    return made


def pi_message(stop: str, **fields: object) -> dict[str, object]:
    return {"type": "message_end", "message": {"role": "assistant", "stopReason": stop, **fields}}


def test_pi_exits_0_on_failure() -> None:
    """Pi's last assistant message decides, although it exits with 0."""
    failed = judge("pi", [pi_message("toolUse"), pi_message("error", errorMessage="Connection error")])
    assert failed.verdict(0) == harnesses.Verdict(succeeded=False, error="Connection error")


def test_pi_recovers() -> None:
    """A failed call that was retried well doesn't count; nor do lines that aren't events."""
    events = [
        b"warning: {",
        pi_message("error"),
        {"type": "message_end", "message": {"role": "user"}},
        pi_message("stop"),
        b"{x",
    ]
    assert judge("pi", events).verdict(0).succeeded


def test_pi_without_any_outcome() -> None:
    """A run that exits with 0 and reports nothing did not succeed."""
    assert judge("pi", [{"type": "agent_start"}]).verdict(0).error == "it exited with 0 but reported no outcome"
    assert judge("pi", []).verdict(3).error == "it exited with 3"


def test_good_events_and_a_bad_exit_code() -> None:
    """Both must be good."""
    assert judge("pi", [pi_message("stop")]).verdict(137) == harnesses.Verdict(
        succeeded=False, error="it exited with 137"
    )


@pytest.mark.parametrize(("is_error", "expected"), [(False, True), (True, False)])
def test_claude_code_result(is_error: bool, expected: bool) -> None:
    """Claude Code's result event decides."""
    made = judge("claude_code", [{"type": "assistant"}, {"type": "result", "is_error": is_error, "result": "text"}])
    assert made.verdict(0) == harnesses.Verdict(succeeded=expected, error="" if expected else "text")


def test_shell_is_judged_by_its_exit_code() -> None:
    """Any command: 0 is good, whatever it prints."""
    made = judge("shell", [{"type": "result", "is_error": True}])
    assert made.verdict(0).succeeded
    assert not made.verdict(1).succeeded
