"""generateContent streams: what their clients insist on."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from google.genai import types

from capture_proxy.dialects.google import DIALECT
from capture_proxy.dialects.google.stream import GenerateStreamEncoder
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
from capture_proxy.turn_ids import completion_of

ID = "11112222-3333-4444-5555-666677778888"
STARTED = Started(ID, "m", 1_700_000_000_000, 12)


def request(*, array: bool = False, thoughts: bool = True) -> ChatRequest:
    """A streaming request."""
    return ChatRequest(
        dialect="google", model="m", messages=[], stream=True, echo={"array": array, "thoughts": thoughts}
    )


def reply(**more: Any) -> Reply:
    """A finished reply with defaults."""
    facts = {"completion_id": ID, "model": "m", "text": "", "finish_reason": "stop", "prompt_tokens": 12}
    return Reply(**{**facts, "completion_tokens": 5, **more})


def encode(*events: ReplyEvent, **options: bool) -> bytes:
    """All bytes of a stream."""
    encoder = GenerateStreamEncoder(request(**options))
    return b"".join(map(encoder.encode, events))


def chunks(*events: ReplyEvent, **options: bool) -> list[dict[str, Any]]:
    """The chunks of a stream without an error; the vendor's own type takes each."""
    body = encode(*events, **options)
    if options.get("array"):
        read: list[dict[str, Any]] = orjson.loads(body)
    else:
        frames = body.split(b"\n\n")
        assert frames.pop() == b""
        assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames)
        read = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]
    for value in read:
        types.GenerateContentResponse.model_validate(value)
        assert (value["candidates"][0]["index"], value["candidates"][0]["content"]["role"]) == (0, "model")
    return read


def parts_of(read: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All parts in order."""
    return [part for value in read for part in value["candidates"][0]["content"]["parts"]]


WHOLE = (
    STARTED, ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("hel"), TextDelta("lo"),
    Finished(reply(
        reasoning="hm", text="hello", finish_reason="tool_calls", reasoning_tokens=2,
        tool_calls=(ToolCall("c_0", "ls", '{"a": "ü",\r\n"b": 1.0}'), ToolCall("c_1", "pwd", "")),
    )),
)  # fmt: skip


@pytest.mark.parametrize("array", [False, True], ids=["sse", "array"])
def test_b79_a_whole_reply(array: bool) -> None:
    """Text and thoughts as they come; whole calls, the reason and the usage on the last chunk only."""
    read = chunks(*WHOLE, array=array)
    parts = parts_of(read)
    assert "".join(part["text"] for part in parts if part.get("thought")) == "hm"
    assert "".join(part["text"] for part in parts if "text" in part and not part.get("thought")) == "hello"
    assert [part["functionCall"] for part in parts if "functionCall" in part] == [
        {"id": "c_0", "name": "ls", "args": {"a": "ü", "b": 1.0}},
        {"id": "c_1", "name": "pwd", "args": {}},
    ]
    assert [value["candidates"][0].get("finishReason") for value in read] == [None] * 4 + ["STOP"]
    assert ["usageMetadata" in value for value in read] == [False] * 4 + [True]
    assert read[-1]["usageMetadata"]["promptTokenCount"] == 12
    assert {value["responseId"] for value in read} == {ID.replace("-", "")}
    assert {value["modelVersion"] for value in read} == {"m"}


def test_the_first_part_of_each_kind_carries_the_turn() -> None:
    """And every call, and the end: a client that joins pieces keeps the first one's fields."""
    signed = [part for part in parts_of(chunks(*WHOLE)) if "thoughtSignature" in part]
    assert [part.get("text") for part in signed] == ["h", "hel", None, None]
    assert {completion_of(part["thoughtSignature"]) for part in signed} == {ID}
    last = parts_of(chunks(STARTED, Finished(reply())))
    assert [part["text"] for part in last] == [""]
    assert completion_of(last[0]["thoughtSignature"]) == ID


def test_b79_a_cut_is_max_tokens() -> None:
    """On the last chunk, with a part that isn't nothing."""
    read = chunks(STARTED, TextDelta("a"), Finished(reply(text="a", finish_reason="length")))
    assert read[-1]["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert parts_of(read)[-1]["text"] == ""


def test_thoughts_are_hidden_from_those_who_did_not_ask() -> None:
    """They are sampled and recorded, but not shown, as with the vendor."""
    read = chunks(*WHOLE, thoughts=False)
    assert not [part for part in parts_of(read) if part.get("thought")]
    assert read[-1]["usageMetadata"]["thoughtsTokenCount"] == 2


@pytest.mark.parametrize("array", [False, True], ids=["sse", "array"])
def test_a_keep_alive_is_an_event_with_an_empty_text(array: bool) -> None:
    """Never a comment, never without a part, and of the kind that is open, so that no client cuts a thought in two."""
    read = chunks(
        KeepAlive(), STARTED, KeepAlive(), ReasoningDelta("h"), KeepAlive(), TextDelta("a"), KeepAlive(),
        Finished(reply(text="a")), array=array,
    )  # fmt: skip
    alive = [value["candidates"][0]["content"]["parts"] for value in read if "usageMetadata" not in value]
    alive = [parts for parts in alive if parts[0]["text"] == ""]
    assert alive == [[{"text": ""}], [{"text": ""}], [{"text": "", "thought": True}], [{"text": ""}]]


def test_no_line_of_an_event_ends_early() -> None:
    """One SDK cuts lines at U+0085, U+2028 and U+2029, another's pattern stops at the last two: they travel escaped."""
    text = "a\u2028b\u2029c\u0085d\r\n"
    body = encode(
        STARTED, TextDelta(text), Finished(reply(tool_calls=(ToolCall("c", "f", f'{{"a": "{text[:-2]}"}}'),)))
    )
    lines = body.decode().splitlines()
    assert [line[:6] for line in lines if line] == ["data: "] * 2
    assert orjson.loads(lines[0][6:])["candidates"][0]["content"]["parts"][0]["text"] == text
    assert orjson.loads(lines[2][6:])["candidates"][0]["content"]["parts"][0]["functionCall"]["args"] == {
        "a": text[:-2]
    }


def test_an_error_is_the_last_event() -> None:
    """As an event, then bare; nothing after it. In an array it is the last element."""
    events = (STARTED, TextDelta("a"), Failed(ProxyError("engine_error", "worker died")), TextDelta("b"))
    frames = encode(*events, Finished(reply())).split(b"\n\n")
    assert len(frames) == 3
    assert frames[1] == b"data: " + frames[2].rstrip()
    assert orjson.loads(frames[2]) == {"error": {"code": 500, "message": "worker died", "status": "INTERNAL"}}
    array = orjson.loads(encode(*events, Finished(reply()), array=True))
    assert [set(item) & {"error"} for item in array] == [set(), {"error"}]
    assert orjson.loads(encode(Failed(ProxyError("engine_error", "x")), array=True))[0]["error"]["code"] == 500


def test_the_framing_has_its_headers() -> None:
    """Events are an event stream, an array is JSON."""
    assert DIALECT.stream_headers_of is not None
    assert DIALECT.stream_headers_of(request())["content-type"].startswith("text/event-stream")
    assert DIALECT.stream_headers_of(request(array=True))["content-type"].startswith("application/json")


def test_t55_streamed_and_whole_say_the_same() -> None:
    """The parts of a stream, put together, are those of the whole answer; reason and usage are equal."""
    finished = WHOLE[-1]
    assert isinstance(finished, Finished)
    whole = orjson.loads(
        DIALECT.encode_whole(
            Reply(
                **{
                    name: getattr(finished.reply, name)
                    for name in finished.reply.__slots__
                    if name not in {"echo", "reasoning"}
                },
                reasoning="hm",
                echo={"thoughts": True},
            )
        )
    )
    read = chunks(*WHOLE)
    told: dict[bool, str] = {True: "", False: ""}
    for part in parts_of(read):
        if "text" in part:
            told[bool(part.get("thought"))] += part["text"]
    thought, text, *calls = whole["candidates"][0]["content"]["parts"]
    assert (told[True], told[False]) == (thought["text"], text["text"])
    assert [p["functionCall"] for p in parts_of(read) if "functionCall" in p] == [p["functionCall"] for p in calls]
    assert read[-1]["usageMetadata"] == whole["usageMetadata"]
    assert read[-1]["candidates"][0]["finishReason"] == whole["candidates"][0]["finishReason"]
