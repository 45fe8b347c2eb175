"""The agent of many calls, against a server that answers from a list."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from compose.ablation import errand_agent


def calling(name: str, **arguments: str) -> dict[str, Any]:
    """A message with one tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def run(monkeypatch: pytest.MonkeyPatch, *replies: dict[str, Any], errands: list[str]) -> list[list[dict[str, Any]]]:
    """The messages of each call."""
    asked: list[list[dict[str, Any]]] = []
    script = list(replies)

    def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        asked.append(json.loads(json.dumps(messages)))
        return script.pop(0)

    monkeypatch.setattr(errand_agent, "ask", ask)
    errand_agent.main(errands)
    assert script == []
    return asked


def test_one_conversation_holds_all_errands_and_only_grows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tool's result follows a call, the next errand follows a reply without one; each prompt begins with the last."""
    monkeypatch.chdir(tmp_path)
    done = {"role": "assistant", "content": "Done."}
    write, read = calling("write", path="a.txt", content="heron"), calling("read", path="b.txt")
    asked = run(monkeypatch, write, done, read, done, errands=["one", "two"])
    assert (tmp_path / "a.txt").read_text() == "heron"
    assert [m["role"] for m in asked[-1]] == [
        *("system", "user", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool"),
    ]
    assert asked[-1][-1]["content"].startswith("error:")
    for earlier, later in itertools.pairwise(asked):
        assert later[: len(earlier)] == earlier


def test_an_errand_has_three_calls_at_most_and_files_stay_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What would be written elsewhere isn't, and a policy that only calls tools comes to an end."""
    monkeypatch.chdir(tmp_path)
    outside = calling("write", path="../x.txt", content="y")
    asked = run(monkeypatch, outside, outside, outside, errands=["one"])
    assert len(asked) == errand_agent.CALLS_PER_ERRAND
    assert asked[-1][-1]["content"] == "error: only files of this directory"
    assert list(tmp_path.parent.glob("x.txt")) == []
