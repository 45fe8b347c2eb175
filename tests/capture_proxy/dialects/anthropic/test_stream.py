"""Messages streams: what their clients insist on."""

from __future__ import annotations

from typing import Any

import orjson

from capture_proxy.dialects.anthropic import DIALECT
from capture_proxy.dialects.anthropic.stream import MessagesStreamEncoder
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

REQUEST = ChatRequest(dialect="anthropic", model="asked-model", messages=[], stream=True)
STARTED = Started("11112222-3333-4444-5555-666677778888", "m", 1_700_000_000_000, 12)


def reply(**more: Any) -> Reply:
    """A finished reply with defaults."""
    return Reply(
        **{
            "completion_id": "11112222-3333-4444-5555-666677778888",
            "model": "m",
            "text": "",
            "finish_reason": "stop",
            "prompt_tokens": 12,
            "completion_tokens": 5,
            **more,
        }
    )


def stream(*events: ReplyEvent) -> list[dict[str, Any]]:
    """The events' data, after checking that every event line names its data's type."""
    encoder = MessagesStreamEncoder(REQUEST)
    read = []
    for frame in b"".join(map(encoder.encode, events)).split(b"\n\n")[:-1]:
        name, data = frame.split(b"\n")
        value = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + value["type"].encode()
        read.append(value)
    return read


def check_order(events: list[dict[str, Any]]) -> None:
    """The grammar: one start, blocks numbered from 0 with one open at a time, then delta and stop; pings anywhere."""
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == 1
    index, is_open = -1, False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                index, is_open = index + 1, True
                assert event["index"] == index
            case "content_block_delta":
                assert is_open
                assert event["index"] == index
            case "content_block_stop":
                assert is_open
                assert event["index"] == index
                is_open = False
    assert not is_open


def test_a_whole_reply() -> None:
    """Thinking, text and two calls: complete, in order, with pings in between; the calls leave only at the end."""
    calls = (ToolCall("c_0", "ls", '{"a": "ü"}'), ToolCall("c_1", "pwd", ""))
    events = stream(
        KeepAlive(), STARTED, ReasoningDelta("hm"), KeepAlive(), TextDelta("hel"), TextDelta("lo"), KeepAlive(),
        Finished(reply(reasoning="hm", text="hello", tool_calls=calls, finish_reason="tool_calls")),
    )  # fmt: skip
    check_order(events)
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "hello"
    assert "".join(delta.get("thinking", "") for delta in deltas) == "hm"
    assert [delta["partial_json"] for delta in deltas if "partial_json" in delta] == ['{"a": "ü"}', "{}"]
    assert [bool(delta["signature"]) for delta in deltas if delta["type"] == "signature_delta"] == [True]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["input_tokens"] == 12
    assert events[-2]["usage"]["output_tokens"] == 5
    assert sum(event["type"] == "ping" for event in events) == 3


def test_an_empty_completion() -> None:
    """Start, delta, stop, and usage in both."""
    events = stream(STARTED, Finished(reply()))
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    message = events[0]["message"]
    assert (message["model"], message["content"], message["usage"]["input_tokens"]) == ("asked-model", [], 12)
    assert isinstance(message["usage"]["output_tokens"], int)
    assert events[1]["delta"]["stop_reason"] == "end_turn"


def test_a_reply_without_a_start_gets_one() -> None:
    """The grammar holds even when the first thing is the end; a second start is ignored."""
    check_order(stream(Finished(reply())))
    check_order(stream(STARTED, STARTED, TextDelta("a"), Finished(reply(text="a"))))


def test_an_error_is_the_last_event() -> None:
    """No fake end after an error, and nothing after it."""
    events = stream(
        STARTED, TextDelta("a"), Failed(ProxyError("engine_error", "worker died")), TextDelta("b"), Finished(reply())
    )
    assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "500 worker died"}}
    assert "message_stop" not in [event["type"] for event in events]


def test_stop_reasons() -> None:
    """Length wins over calls; a stop sequence is named; calls count even if the engine says stop."""
    call = (ToolCall("c", "f", "{}"),)
    cases = [
        (reply(finish_reason="length"), "max_tokens", None),
        (reply(finish_reason="stop", stop_sequence="END"), "stop_sequence", "END"),
        (reply(finish_reason="stop", tool_calls=call), "tool_use", None),
        (reply(finish_reason="length", tool_calls=call), "max_tokens", None),
    ]
    for finished, reason, sequence in cases:
        delta = stream(STARTED, Finished(finished))[-2]["delta"]
        assert delta == {"stop_reason": reason, "stop_sequence": sequence}
        whole = orjson.loads(DIALECT.encode_whole(finished))
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
