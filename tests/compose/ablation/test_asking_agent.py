"""The agent of many calls, against a server that answers from a list."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from compose.ablation import asking_agent


def calling(name: str, **arguments: str) -> dict[str, Any]:
    """A message with one tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def run(monkeypatch: pytest.MonkeyPatch, *replies: dict[str, Any], times: int = 2) -> list[list[dict[str, Any]]]:
    """The messages of each call, asked to write heron to a.txt."""
    asked: list[list[dict[str, Any]]] = []
    script = list(replies)

    def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        asked.append(json.loads(json.dumps(messages)))
        return script.pop(0)

    monkeypatch.setattr(asking_agent, "ask", ask)
    asking_agent.main("heron", "a.txt", times)
    assert script == []
    return asked


def test_it_asks_again_while_the_file_is_not_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tool's result follows a call, another request follows a reply without one; each prompt begins with the last; then it ends."""
    monkeypatch.chdir(tmp_path)
    done = {"role": "assistant", "content": "Done."}
    wrong, right = calling("write", path="a.txt", content="grape"), calling("write", path="a.txt", content="heron")
    asked = run(monkeypatch, calling("read", path="a.txt"), done, wrong, done, right, done)
    assert (tmp_path / "a.txt").read_text() == "heron"
    assert [m["role"] for m in asked[-1]].count("user") == 3
    assert asked[1][-1]["content"].startswith("error:")
    for earlier, later in itertools.pairwise(asked):
        assert later[: len(earlier)] == earlier


def test_what_is_right_at_once_takes_two_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So length and failure go together."""
    monkeypatch.chdir(tmp_path)
    right, done = calling("write", path="a.txt", content="heron"), {"role": "assistant", "content": "Done."}
    assert len(run(monkeypatch, right, done)) == 2


def test_a_request_has_three_calls_at_most_and_files_stay_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What would be written elsewhere isn't, and a policy that only calls tools comes to an end."""
    monkeypatch.chdir(tmp_path)
    outside = calling("write", path="../x.txt", content="y")
    asked = run(monkeypatch, *[outside] * 6, times=1)
    assert len(asked) == 2 * asking_agent.CALLS_PER_REQUEST
    assert asked[-1][-1]["content"] == "error: only files of this directory"
    assert list(tmp_path.parent.glob("x.txt")) == []
