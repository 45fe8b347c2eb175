"""Chat Completions streams and bodies: what their clients insist on."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capture_proxy.dialects import ModelEntry
from capture_proxy.dialects.openai_chat import DIALECT
from capture_proxy.dialects.openai_chat.stream import ChatStreamEncoder
from capture_proxy.reply import (
    ChatRequest,
    Failed,
    Finished,
    KeepAlive,
    ProxyError,
    ReasoningDelta,
    Reply,
    ReplyEvent,
    Started,
    TextDelta,
    ToolCall,
)

STARTED = Started("11-22", "m", 1_700_000_000_123, 12)
CALLS = (ToolCall("c_0", "ls", '{"a": "ü"}'), ToolCall("c_1", "pwd", ""))


def reply(**more: Any) -> Reply:
    """A finished reply with defaults."""
    return Reply(
        **{
            "completion_id": "11-22",
            "model": "m",
            "text": "",
            "finish_reason": "stop",
            "prompt_tokens": 12,
            "completion_tokens": 5,
            **more,
        }
    )


def stream(*events: ReplyEvent, include_usage: bool = False) -> list[Any]:
    """The stream's values; the end mark as the string it is."""
    encoder = ChatStreamEncoder(
        ChatRequest(dialect="openai_chat", model="asked", messages=[], include_usage=include_usage)
    )
    frames = b"".join(map(encoder.encode, events)).split(b"\n\n")
    assert frames.pop() == b""
    data = [frame.removeprefix(b"data: ") for frame in frames]
    return [item.decode() if item == b"[DONE]" else orjson.loads(item) for item in data]


def test_a_whole_reply() -> None:
    """Role first, then text as it comes, calls whole at the end with id and name once, then the reason and the mark."""
    values = stream(
        KeepAlive(), STARTED, ReasoningDelta("hm"), TextDelta("hel"), KeepAlive(), TextDelta("lo"),
        Finished(reply(text="hello", reasoning="hm", tool_calls=CALLS, finish_reason="tool_calls")),
    )  # fmt: skip
    assert values.pop() == "[DONE]"
    deltas = [value["choices"][0]["delta"] for value in values]
    assert deltas[1] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "hello"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [(call["index"], call["id"], call["function"]["arguments"]) for call in calls] == [
        (0, "c_0", '{"a": "ü"}'),
        (1, "c_1", "{}"),
    ]
    assert [value["choices"][0]["finish_reason"] for value in values] == [None] * (len(values) - 1) + ["tool_calls"]
    assert {value["id"] for value in values[1:]} == {"chatcmpl-11-22"}
    assert {(value["model"], value["object"]) for value in values} == {("asked", "chat.completion.chunk")}
    assert deltas.count({}) == 3  # two keep-alives and the finishing chunk


@pytest.mark.parametrize("include_usage", [True, False])
def test_usage(include_usage: bool) -> None:
    """The chunk without choices comes once, last, and only when asked for; the numbers come either way."""
    values = stream(STARTED, TextDelta("a"), Finished(reply(text="a")), include_usage=include_usage)
    assert [value["choices"] == [] for value in values[:-1]] == [False] * (len(values) - 2) + [include_usage]
    usages = [value["usage"] for value in values[:-1] if value.get("usage")]
    assert [(u["prompt_tokens"], u["completion_tokens"], u["total_tokens"]) for u in usages] == [(12, 5, 17)]


def test_an_error_ends_the_stream_without_an_end_mark() -> None:
    """An error chunk, then nothing: no fake finish."""
    values = stream(STARTED, TextDelta("a"), Failed(ProxyError("engine_unavailable", "worker died")), Finished(reply()))
    assert values[-1]["error"]["message"] == "503 worker died"
    assert values[-1]["error"]["code"] == "service_unavailable"


def test_a_whole_body() -> None:
    """Content is null only beside calls; reasoning and usage are there; a cut reply says length."""
    value = orjson.loads(
        DIALECT.encode_whole(reply(tool_calls=CALLS, reasoning="r", finish_reason="tool_calls", created_at=5_999))
    )
    message = value["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"], value["choices"][0]["finish_reason"]) == (
        None,
        "r",
        "tool_calls",
    )
    assert message["tool_calls"][0] == {
        "id": "c_0",
        "type": "function",
        "function": {"name": "ls", "arguments": '{"a": "ü"}'},
    }
    assert (value["created"], value["usage"]["total_tokens"]) == (5, 17)
    empty = orjson.loads(DIALECT.encode_whole(reply(finish_reason="length")))["choices"][0]
    assert (empty["message"]["content"], empty["finish_reason"]) == ("", "length")


def test_models() -> None:
    """The list in the vendor's shape."""
    value = orjson.loads(DIALECT.encode_models([ModelEntry("a", 100, 9_000)]))
    assert value == {
        "object": "list",
        "data": [{"id": "a", "object": "model", "created": 9, "owned_by": "polynya", "context_length": 100}],
    }
