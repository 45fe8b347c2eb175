"""Trials of real CLIs on a stack: submitted all at once, two running at a time, and what the log holds of each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import harnesses
from compose.trial.script import CHECK, INSTRUCTION, STEPS
from schemas.records import (
    Boundary,
    CompletionDelivery,
    CompletionRecord,
    ScoredTrajectory,
    SessionSealed,
    Status,
)
from tests.e2e.stack import Stack

RUN_S = 360.0
# Each takes a core of its own for seconds: more at a time only slows down all of them.
AT_ONCE = {"POLYNYA_RUN_SLOTS": "2"}


@dataclass(frozen=True, slots=True)
class Trial:
    """One harness on one wire, and what came of it."""

    harness: str
    wire: str
    scored: ScoredTrajectory
    calls: list[CompletionRecord]
    deliveries: list[CompletionDelivery]
    seals: list[SessionSealed]

    def report(self) -> str:
        """Enough to see what went wrong."""
        calls = [(c.call_seq, c.dialect, str(c.state), c.prompt_len, c.finish_reason) for c in self.calls]
        scored = self.scored
        return f"{self.harness} on {self.wire}: {scored.status}, {scored.boundary}, {scored.error}; calls {calls}"


def task_of(harness: str, wire: str) -> dict[str, Any]:
    """The trial as a task file's tree."""
    adapter = harnesses.get(harness)
    options = {"wire": wire} if "wire" in adapter.options else {}
    return {
        "task_id": f"trial-{harness}-{wire}",
        "instruction": INSTRUCTION,
        "harness": {"name": harness, "options": options},
        "evaluator": {"name": "command", "options": {"command": CHECK}},
        "max_attempts": 1,
        "budgets": {"run_s": RUN_S, "queue_s": 1800},
    }


async def run_trials(stack: Stack, pairs: list[tuple[str, str]], timeout_s: float) -> dict[tuple[str, str], Trial]:
    """Runs all of them and reads the log once."""
    tasks = [task_of(*pair) for pair in pairs]
    done = stack.cli(
        *("submit", "-", "--json", "--wait", "--timeout-s", str(timeout_s)),
        stdin=json.dumps(tasks),
        timeout_s=timeout_s + 60,
        check=False,
    )
    # 1: a session failed; its own test says which and why.
    assert done.returncode in {0, 1}, f"{done.stdout}\n{done.stderr}\n{stack.logs()}"
    by_task = {str(task["task_id"]): pair for task, pair in zip(tasks, pairs, strict=True)}
    scored = [s for s in await stack.read("trajectory.scored") if isinstance(s, ScoredTrajectory)]
    captured = await stack.read("capture.completions")
    made: dict[tuple[str, str], Trial] = {}
    for one in scored:
        if one.task_id not in by_task:
            continue
        mine = [r for r in captured if getattr(r, "session_id", "") == one.session_id]
        harness, wire = by_task[one.task_id]
        made[harness, wire] = Trial(
            harness,
            wire,
            one,
            sorted((r for r in mine if isinstance(r, CompletionRecord)), key=lambda c: c.call_seq),
            [r for r in mine if isinstance(r, CompletionDelivery)],
            [r for r in mine if isinstance(r, SessionSealed)],
        )
    return made


def check(trial: Trial) -> None:
    """The run did what it should and nothing else: its task, exactly the script's calls, each delivered, one trace of all of them."""
    scored, report = trial.scored, trial.report()
    assert (scored.status, scored.boundary) == (Status.COMPLETED, Boundary.NONE), report
    assert scored.reward == 1.0, report
    # No title, no retry, no fallback to another way of asking: what the log holds is the script, once.
    assert [c.call_seq for c in trial.calls] == list(range(1, STEPS + 1)), report
    assert {c.dialect for c in trial.calls} == {trial.wire}, report
    assert {c.harness for c in trial.calls} == {trial.harness}, report
    assert {d.completion_id for d in trial.deliveries if d.delivered} == {c.completion_id for c in trial.calls}, report
    assert [s.last_seq for s in trial.seals] == [STEPS], report
    first = trial.calls[0]
    assert len(first.tool_calls) == 2, report
    # Both commands ran, and neither was refused. One harness escapes what isn't ASCII in its results.
    seen = str(trial.calls[1].messages)
    # Qwen Code's terminal now and then loses what one of two very short commands said: then it says so.
    if trial.harness == "qwen_code" and "Output: (empty)" in seen:
        assert seen.count("Exit Code: 0") == 2, (seen, report)
    else:
        assert "CWD=/" in seen, (seen, report)
        assert re.search(r"zwei (✓|\\+u2713)(\\+n|\s)+42\b", seen), (seen, report)
    assert scored.trajectory is not None, report
    counts = scored.trajectory.counts
    assert (counts.calls, counts.trained, counts.untrainable) == (STEPS, STEPS, {}), report
    assert [str(c.lineage) for c in trial.calls] == ["root"] + ["resolved"] * (STEPS - 1), report
    assert [c.parent_id for c in trial.calls] == ["", *(c.completion_id for c in trial.calls[:-1])], report
    # Each turn's prompt extends the one before: nothing that a harness does to its history breaks the run into pieces.
    assert [len(trace.turns) for trace in scored.trajectory.traces] == [STEPS], report
    assert counts.trainable_tokens == sum(len(c.output_ids) // 4 for c in trial.calls), report
