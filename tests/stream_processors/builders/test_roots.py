"""Why a call begins a new trace, as told by the conversation's text."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import CompletionRecord
from stream_processors.builders import build
from tests.stream_processors.helpers import E, call, delivered

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
TOOL = {"role": "tool", "content": "r"}


def said(seq: int, prompt: list[int], output: list[int], messages: list[Any], **fields: Any) -> CompletionRecord:
    return call(seq, prompt, output, messages=messages, **fields)


def second_root(second: CompletionRecord) -> tuple[str, str, int]:
    """(root_reason, branch, parent_trace) of a second trace behind a first call that said "hi"."""
    first = said(1, [1, 2], [10, E], [SYSTEM, USER], text="hi")
    traces = build("prefix_merging", {}, delivered(first, second), "policy").traces
    assert traces[0].root_reason == "session_start"
    return traces[1].root_reason, traces[1].branch, traces[1].parent_trace


def test_t2_the_same_text_in_other_tokens() -> None:
    """T2 with a text-in engine: two rows, and the reason says that the tokeniser did it."""
    reply = {"role": "assistant", "content": "hi"}
    second = said(2, [1, 2, 59, E, 50], [20, E], [SYSTEM, USER, reply, TOOL])
    assert second_root(second) == ("retokenized", "main", 0)


@pytest.mark.parametrize("content", ["ho", None])
def test_t8_another_text(content: str | None) -> None:
    """T8: the harness changed the reply."""
    reply = {"role": "assistant", "content": content}
    second = said(2, [1, 2, 59, E, 50], [20, E], [SYSTEM, USER, reply, TOOL])
    assert second_root(second) == ("assistant_rewritten", "main", 0)


@pytest.mark.parametrize("empty", [{"content": None}, {"content": ""}, {}])
def test_t7_all_spellings_of_nothing_are_the_same_text(empty: dict[str, Any]) -> None:
    """T7: null, "" and no content at all mean the same reply."""
    tool_calls = [{"id": "1", "name": "ls", "arguments": "{}"}]
    first = said(1, [1, 2], [10, E], [SYSTEM, USER], text="", tool_calls=tool_calls)
    reply = {"role": "assistant", "tool_calls": tool_calls, **empty}
    second = said(2, [1, 2, 59, E, 50], [20, E], [SYSTEM, USER, reply, TOOL])
    traces = build("prefix_merging", {}, delivered(first, second), "policy").traces
    assert traces[1].root_reason == "retokenized"


def test_t17_other_tools() -> None:
    """T17: the rendered tools changed, so the prompt did."""
    reply = {"role": "assistant", "content": "hi"}
    second = said(2, [1, 9, 10, E, 50], [20, E], [SYSTEM, USER, reply, TOOL], tools_digest="other")
    assert second_root(second) == ("tools_changed", "main", 0)


def test_t14_compaction() -> None:
    """T14: the same beginning, another history."""
    second = said(2, [1, 60], [20, E], [SYSTEM, {"role": "user", "content": "summary"}])
    assert second_root(second) == ("context_replaced", "main", 0)


def test_another_conversation() -> None:
    """Nothing in common: something of its own, not a part of the main line."""
    second = said(2, [7], [20, E], [{"role": "system", "content": "other"}, USER])
    assert second_root(second) == ("new_conversation", "sub-agent", -1)


def test_the_same_prompt_again() -> None:
    """The first call sent twice with different bodies, both delivered: two samples of one prompt."""
    assert second_root(said(2, [1, 2], [20, E], [SYSTEM, USER]))[0] == "resampled"


def test_a_trace_carries_the_conversation_and_its_tools() -> None:
    """Messages end with the trace's last reply; a record that only repeats the tools' digest gets them."""
    tools = [{"name": "ls"}]
    first = said(1, [1, 2], [10, E], [SYSTEM, USER], text="hi", tools=tools, tools_digest="t")
    second = said(
        2,
        [1, 2, 10, E, 5],
        [20, E],
        [SYSTEM, USER, {"role": "assistant", "content": "hi"}, TOOL],
        text="bye",
        tools_digest="t",
    )
    (trace,) = build("prefix_merging", {}, delivered(first, second), "policy").traces
    assert trace.tools == tools
    assert [m["role"] for m in trace.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trace.messages[-1]["content"] == "bye"
