"""The state machines as Markdown, for docs/sessions.md: `python -m stream_processors.orchestrator.describe` prints them."""

from __future__ import annotations

import inspect
import re
import signal
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from stream_processors.orchestrator import states
from stream_processors.orchestrator.groups import states as group_states


def sessions() -> str:
    """One row per move and what causes it, with the stages in which it does."""
    return _table(states.MOVES, {states.NEW: "(new)"}, _docs(states.Move))


def groups() -> str:
    """The same for groups."""
    return _table(group_states.MOVES, {group_states.GroupStage.NEW: "(new)"}, _docs(group_states.GroupMove))


def _table(moves: Mapping[Any, Any], names: Mapping[Any, str], docs: Mapping[str, str]) -> str:
    facts: dict[tuple[Any, Any], list[str]] = {}
    for (stage, fact), move in moves.items():
        facts.setdefault((stage, move), []).append(f"`{fact}`")
    stages: dict[tuple[Any, str], list[str]] = {}
    for (stage, move), causes in facts.items():
        stages.setdefault((move, ", ".join(causes)), []).append(names.get(stage, stage))
    lines = ["| in | fact | move | what it does |", "|---|---|---|---|"]
    lines += [f"| {', '.join(where)} | {why} | {move} | {docs[move]} |" for (move, why), where in stages.items()]
    return "\n".join(lines)


def _docs(moves: type[StrEnum]) -> dict[str, str]:
    """The text under each member of an enum."""
    found = re.findall(r'= "(\w+)"\n\s+"""(.+?)"""', inspect.getsource(moves), re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # into `head`: it ends as any other program does
    print(sessions(), groups(), sep="\n\n")  # noqa: T201 - what the command is for
