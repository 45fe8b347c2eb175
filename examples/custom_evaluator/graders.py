"""Rewards for steps: the evaluator `trajectory` calls `steps` with the whole session, and gives each trace its own reward."""

from __future__ import annotations

import json
from typing import Any

from stage_workers.grading_process import GradedSession


def steps(session: GradedSession, *, useful: float = 1.0, repeated: float = 0.0, broken: float = -0.5) -> list[float]:
    """One reward per trace: what the last call in it was worth.

    A call of a tool that stood there before is `repeated`, one whose arguments are no JSON is `broken`, all else is `useful`. A failed
    run earns nothing by its steps. With the builder `per_request` every call is a trace, so this is a reward per call; with
    `prefix_merging` it is one per branch (main agent, sub-agents, retries).
    """
    if session.status != "completed":
        return [0.0] * len(session.trajectory.traces)
    seen: set[tuple[str, str]] = set()
    worth = {"useful": useful, "repeated": repeated, "broken": broken}
    return [worth[_kind(_calls(trace.messages), seen)] for trace in session.trajectory.traces]


def _kind(calls: list[tuple[str, str]], seen: set[tuple[str, str]]) -> str:
    kinds = {_kind_of(call, seen) for call in calls}
    seen.update(calls)
    return next((kind for kind in ("broken", "repeated") if kind in kinds), "useful")


def _kind_of(call: tuple[str, str], seen: set[tuple[str, str]]) -> str:
    try:
        json.loads(call[1])
    except json.JSONDecodeError:
        return "broken"
    return "repeated" if call in seen else "useful"


def _calls(messages: Any) -> list[tuple[str, str]]:
    """Name and arguments of the tool calls in a conversation's last message, which the policy wrote."""
    last = messages[-1] if messages else {}
    functions = [call["function"] for call in last.get("tool_calls") or []]
    return [(function["name"], _text(function["arguments"])) for function in functions]


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)
