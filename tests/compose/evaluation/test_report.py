"""From results to a report, its file, and two of them side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compose.cli.eval import show, warn
from compose.errors import CommandError
from compose.evaluation.compare import compare
from compose.evaluation.report import Attempt, Report
from schemas.records import ScoredTrajectory, SessionSpec, Status, Trace, Trajectory, TurnSpan, VersionSpan


def attempt(task: str, reward: float | None, *, harness: str = "pi", index: int = 0, **fields: Any) -> Attempt:
    given: dict[str, Any] = {
        "repository": "moto",
        "session_id": f"{task}-{harness}-{index}",
        "status": "completed",
        "boundary": "none",
        "versions": {"7": 100},
    }
    return Attempt(task=task, harness=harness, index=index, reward=reward, **(given | fields))


def report(*attempts: Attempt, **fields: Any) -> Report:
    given: dict[str, Any] = {
        "eval_id": "eval-1",
        "task_file": "tasks.jsonl",
        "policy_id": "p",
        "version": "7",
        "accept": 1.0,
        "samples": 1,
        "started_at": 1,
        "ended_at": 2,
    }
    return Report(attempts=list(attempts), **(given | fields))


def test_an_attempt_from_a_result() -> None:
    """Versions are counted by the tokens of trained turns."""
    spans = [VersionSpan(version="7", start=0, end=30), VersionSpan(version="8", start=30, end=40)]
    turns = [
        TurnSpan(start=0, end=40, is_trained=True, version_spans=spans),
        TurnSpan(start=50, end=60, is_trained=False, version_spans=[VersionSpan(version="9", start=0, end=10)]),
    ]
    scored = ScoredTrajectory(
        session_id="s",
        status=Status.COMPLETED,
        reward=1.0,
        trajectory=Trajectory(traces=[Trace(turns=turns)]),
        spec=SessionSpec(harness="codex", index=3, metadata={"repo": "a/b"}),
    )
    found = Attempt.of(scored, task="t")
    assert (found.task, found.harness, found.index, found.repository) == ("t", "codex", 3, "a/b")
    assert found.versions == {"7": 30, "8": 10}
    bare = Attempt.of(ScoredTrajectory(session_id="s", status=Status.FAILED), task="t")
    assert (bare.reward, bare.repository, bare.versions) == (None, "(none)", {})


def test_numbers_by_harness_and_repository() -> None:
    """What can't be graded was attempted and not accepted; each harness has its own numbers."""
    found = report(
        attempt("a", 1.0, index=0),
        attempt("a", 0.0, index=1),
        attempt("b", None, index=0, repository="dvc", status="failed"),
        attempt("b", 1.5, index=1, repository="dvc"),
        attempt("a", 0.0, harness="codex"),
    )
    summary = found.summary()
    pi = summary["pi"]
    assert (pi["attempted"], pi["accepted"], pi["ungraded"], pi["tasks"], pi["samples"]) == (4, 2, 1, 2, 2)
    assert (pi["pass_at"]["1"]["value"], pi["pass_at"]["2"]["value"]) == (0.5, 1.0)
    assert pi["interval"] == "95 % bootstrap over tasks"
    assert {name: (r["accepted"], r["attempted"]) for name, r in pi["repositories"].items()} == {
        "moto": (1, 2),
        "dvc": (1, 2),
    }
    assert summary["codex"]["interval"] == "95 % Wilson"
    assert summary["codex"]["pass_at"] == {"1": {"value": 0.0, "low": 0.0, "high": pytest.approx(0.7935, abs=1e-4)}}


def test_other_weights_are_said_loudly(capsys: pytest.CaptureFixture[str]) -> None:
    """Answers of another version than the one meant stand on standard error, with their share."""
    good = report(attempt("a", 1.0))
    warn(good)
    assert capsys.readouterr().err == ""
    mixed = report(attempt("a", 1.0, versions={"7": 300, "8": 100}), missing=2)
    assert mixed.strangers == ["8"]
    warn(mixed)
    said = capsys.readouterr().err
    assert "OTHER WEIGHTS ANSWERED" in said
    assert "8: 100 tokens, 25.0 %" in said
    assert "2 sessions are missing" in said
    unknown = report(attempt("a", 1.0, versions={"7": 300, "8": 100}), version="")
    assert unknown.strangers == ["8"]
    assert report(attempt("a", 1.0, versions={"8": 1})).strangers == ["8"]


def test_a_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers, the repositories, and which interval it is."""
    show(report(attempt("a", 1.0), attempt("b", None)))
    said = capsys.readouterr().out
    assert "pi: 1 accepted of 2 sessions, 2 tasks" in said
    assert "pass@1  50.0 % [9.5, 90.5]  (95 % Wilson)" in said
    assert "1 could not be graded" in said
    assert "moto" in said


def test_its_file(tmp_path: Path) -> None:
    """Written and read back it is the same; something else is a usage error."""
    found = report(attempt("a", 1.0), attempt("b", None, error="no"))
    path = tmp_path / "r.json"
    path.write_text(json.dumps(found.to_json()))
    assert Report.read(path) == found
    for text in ("{}", "[]", "oops", json.dumps(found.to_json() | {"format": 9})):
        path.write_text(text)
        with pytest.raises(CommandError, match="evaluation"):
            Report.read(path)


def test_side_by_side() -> None:
    """Over the tasks that both have; a harness that both ran, or the one that each ran."""
    names = [f"t{n}" for n in range(12)]
    first = report(*(attempt(name, 0.0) for name in [*names, "only-here"]))
    second = report(*(attempt(name, 1.0) for name in names))
    (line,) = compare(first, second)
    assert (line.harness, line.k, line.tasks) == ("pi", 1, 12)
    assert (line.first.value, line.second.value, line.gain.value, line.is_clear) == (0.0, 1.0, 1.0, True)
    codex = report(*(replace(one, harness="codex") for one in first.attempts))
    (line,) = compare(codex, second)
    assert line.harness == "codex → pi"
    (same,) = compare(second, second)
    assert (same.gain.value, same.is_clear) == (0.0, False)
    assert compare(first, report(attempt("elsewhere", 1.0))) == []
