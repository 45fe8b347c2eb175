"""Responses streams: what their clients insist on, field by field."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capture_proxy.dialects.openai_responses import DIALECT
from capture_proxy.reply import (
    Failed,
    Finished,
    KeepAlive,
    ProxyError,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCall,
)
from capture_proxy.turn_ids import completion_of
from tests.capture_proxy.dialects.openai_responses.said import (
    COMPLETION,
    HEX,
    STARTED,
    finish,
    of,
    parse,
    reply,
    stream,
    whole,
)

CALLS = (ToolCall(f"call_{HEX}_0", "sh", '{"c": "ü"}'), ToolCall(f"call_{HEX}_1", "sh", ""))
TOOLS = [{"type": "function", "name": "sh", "parameters": {"type": "object"}, "strict": False}]


def test_b49_one_terminal_event_always() -> None:
    """A finished reply ends in `response.completed` with usage whatever the engine said; `[DONE]` plays no part."""
    values = finish(parse(input="x"), TextDelta("hi"), text="hi")
    assert values[-1]["type"] == "response.completed"
    assert values[-1]["response"]["usage"]["total_tokens"] == 17
    encoder = DIALECT.stream_encoder(parse(input="x"))
    data = b"".join(map(encoder.encode, [STARTED, Finished(reply())]))
    assert b"[DONE]" not in data
    assert encoder.encode(Finished(reply())) == encoder.encode(KeepAlive()) == b""


def test_b49_a_reply_that_breaks_off_fails() -> None:
    """A break in mid-text is `response.failed` with code and message, and nothing pretends that the text is whole."""
    values = stream(
        parse(input="x"), STARTED, TextDelta("hal"), Failed(ProxyError("engine_error", "the reply broke off"))
    )
    response = values[-1]["response"]
    assert values[-1]["type"] == "response.failed"
    assert (response["status"], response["error"]) == (
        "failed",
        {"code": "server_error", "message": "the reply broke off"},
    )
    assert not of(values, "response.output_text.done")
    assert not of(values, "response.output_item.done")


def test_a_failure_before_the_start_is_whole_too() -> None:
    """Even without a start the stream has its terminal event, with an id."""
    [value] = stream(parse(input="x"), Failed(ProxyError("engine_unavailable", "no engine")))
    assert value["type"] == "response.failed"
    assert value["response"]["id"].startswith("resp_")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("context_overflow", "context_length_exceeded"),
        ("overloaded", "rate_limit_exceeded"),
        ("lease_ended", "invalid_prompt"),
        ("internal", "server_error"),
    ],
)
def test_failures_have_the_codes_that_clients_act_on(kind: Any, code: str) -> None:
    """Retry, compact or stop: the code tells."""
    encoder = DIALECT.stream_encoder(parse(input="x"))
    data = encoder.encode(STARTED) + encoder.encode(Failed(ProxyError(kind, "m")))
    last = orjson.loads(data.rpartition(b"data: ")[2])
    assert last["response"]["error"] == {"code": code, "message": "m"}


def test_b50_every_field_of_a_whole_stream() -> None:
    """Reasoning 0, message 1, calls 2 and 3; deltas name their item; item ids and call ids differ; one response id throughout."""
    request = parse(input="x", tools=TOOLS, include=["reasoning.encrypted_content"])
    values = finish(
        request,
        ReasoningDelta("hm"),
        ReasoningDelta("m"),
        TextDelta("hel"),
        TextDelta("lo"),
        text="hello",
        reasoning="hmm",
        tool_calls=CALLS,
        finish_reason="tool_calls",
    )
    assert [value["type"].removeprefix("response.") for value in values] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    response = values[-1]["response"]
    assert response["id"] == f"resp_{HEX}"
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["id"].partition("_")[0] for item in response["output"]] == ["rs", "msg", "fc", "fc"]
    assert [item.get("call_id") for item in response["output"]] == [None, None, CALLS[0].id, CALLS[1].id]
    assert [value["content_index"] for value in of(values, "response.output_text.delta")] == [0, 0]
    assert "".join(value["delta"] for value in of(values, "response.output_text.delta")) == "hello"
    assert {"id", "object", "model", "status", "output", "usage"} <= response.keys()
    assert values[0]["response"]["status"] == values[1]["response"]["status"] == "in_progress"


def test_b52_one_item_per_call() -> None:
    """A call is one item: added, filled, done with the whole arguments, and completed."""
    arguments = orjson.dumps({"c": "x" * 400}).decode()
    values = finish(parse(input="x", tools=TOOLS), tool_calls=(ToolCall("call_1", "sh", arguments),))
    assert len(of(values, "response.output_item.added")) == 1
    deltas = [value["delta"] for value in of(values, "response.function_call_arguments.delta")]
    [done] = of(values, "response.function_call_arguments.done")
    [item] = of(values, "response.output_item.done")
    assert "".join(deltas) == done["arguments"] == item["item"]["arguments"] == arguments
    assert item["item"]["status"] == "completed"


def test_b37_a_call_without_arguments() -> None:
    """Clients parse the arguments: without any they are `{}`."""
    values = finish(parse(input="x", tools=TOOLS), tool_calls=(ToolCall("call_1", "sh", ""),))
    assert of(values, "response.function_call_arguments.done")[0]["arguments"] == "{}"
    assert values[-1]["response"]["output"][0]["arguments"] == "{}"


def test_b56_a_freeform_call_streams_raw_text() -> None:
    """The client of a custom tool gets the text itself, byte for byte, in the custom tool's own events."""
    patch = '*** Begin Patch\n*** Add File: a.txt\n+h\u00e9 "q" \\n\n*** End Patch\n'
    request = parse(input="x", tools=[{"type": "custom", "name": "apply_patch"}])
    arguments = orjson.dumps({"input": patch}).decode()
    values = finish(request, tool_calls=(ToolCall("call_1", "apply_patch", arguments),), finish_reason="tool_calls")
    [delta] = of(values, "response.custom_tool_call_input.delta")
    [done] = of(values, "response.custom_tool_call_input.done")
    [item] = values[-1]["response"]["output"]
    assert delta["delta"] == done["input"] == item["input"] == patch
    assert (item["type"], item["call_id"], item["name"]) == ("custom_tool_call", "call_1", "apply_patch")
    assert not of(values, "response.function_call_arguments.done")


def test_b62_the_blob_only_when_asked_for() -> None:
    """With the include, the reasoning item carries a handle to its call, not its text; without, it carries nothing."""
    for include in ([], ["reasoning.encrypted_content"]):
        request = parse(input="x", store=False, include=include)
        values = finish(request, ReasoningDelta("secret thought"), reasoning="secret thought", text="")
        [item] = values[-1]["response"]["output"]
        blob = item.get("encrypted_content")
        assert completion_of(blob) == (COMPLETION if include else None)
        assert "secret" not in str(blob)
        assert item == whole(reply(request, reasoning="secret thought"))["output"][0]


@pytest.mark.parametrize("summary", [None, "auto"])
def test_reasoning_is_a_summary_where_one_was_asked_for(summary: str | None) -> None:
    """Clients that ask for a summary show only summaries; others get reasoning text. Each comes with its part events."""
    request = parse(input="x", reasoning={"summary": summary})
    values = finish(request, ReasoningDelta("a"), ReasoningDelta("b"), TextDelta("c"), reasoning="ab", text="c")
    item = values[-1]["response"]["output"][0]
    kinds = [v["type"] for v in values if "reasoning" in v["type"]]
    if summary:
        assert (item["summary"], "content" in item) == ([{"type": "summary_text", "text": "ab"}], False)
        assert kinds == [
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
        ]
    else:
        assert (item["summary"], item["content"]) == ([], [{"type": "reasoning_text", "text": "ab"}])
        assert kinds == [
            "response.reasoning_text.delta",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
        ]


def test_b65_a_cut_reply_is_incomplete() -> None:
    """The finished first call stays a call; the cut second one is text as it was sampled, in an item that is incomplete."""
    cut = '<tool_call>\n{"name": "sh", "arguments": {"c":"rm'
    request = parse(input="x", tools=TOOLS)
    more: dict[str, Any] = {"text": cut, "tool_calls": CALLS[:1], "finish_reason": "length"}
    values = finish(request, TextDelta(cut), **more)
    last = values[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    text, call = last["response"]["output"]
    assert (text["content"][0]["text"], text["status"]) == (cut, "incomplete")
    assert (call["arguments"], call["status"]) == ('{"c": "ü"}', "completed")
    assert len(of(values, "response.function_call_arguments.done")) == 1
    assert whole(reply(request, **more))["output"] == last["response"]["output"]


def test_a_cut_in_the_thinking() -> None:
    """Thinking that nothing followed is what was cut."""
    values = finish(parse(input="x"), ReasoningDelta("so"), reasoning="so", finish_reason="length")
    assert [item["status"] for item in values[-1]["response"]["output"]] == ["incomplete"]


def test_calls_leave_only_with_the_end() -> None:
    """Nothing that a client can act on is out before the reply is finished."""
    request = parse(input="x", tools=TOOLS)
    encoder = DIALECT.stream_encoder(request)
    before = b"".join(map(encoder.encode, [STARTED, ReasoningDelta("r"), TextDelta("t"), KeepAlive()]))
    assert b"function_call" not in before.replace(b'"function"', b"")
    assert b"response.completed" not in before
    after = encoder.encode(Finished(reply(request, text="t", reasoning="r", tool_calls=CALLS)))
    assert after.count(b"event: response.function_call_arguments.done") == 2


def test_b46_keep_alives_are_numbered_events() -> None:
    """Silence shows as `response.in_progress` again; it opens nothing and takes its number."""
    values = finish(parse(input="x"), KeepAlive(), TextDelta("a"), KeepAlive(), TextDelta("b"), text="ab")
    assert len(of(values, "response.in_progress")) == 3
    assert len(of(values, "response.output_item.added")) == 1
    assert DIALECT.stream_encoder(parse(input="x")).encode(KeepAlive()) == b""


def test_b34_one_start() -> None:
    """A second start adds nothing."""
    values = stream(parse(input="x"), STARTED, Started("other", "m", 0, 1), TextDelta("a"), Finished(reply(text="a")))
    assert len(of(values, "response.created")) == 1


def test_b40_an_empty_reply_is_complete() -> None:
    """Nothing sampled, nothing invented: no items, and a completed response."""
    request = parse(input="x")
    values = finish(request)
    assert [v["type"] for v in values] == ["response.created", "response.in_progress", "response.completed"]
    assert values[-1]["response"]["output"] == whole(reply(request))["output"] == []


@pytest.mark.parametrize("summary", [None, "auto"])
def test_t55_the_stream_ends_as_the_whole_answer(summary: str | None) -> None:
    """One reply, streamed or whole: the last event holds the very response that the body would."""
    request = parse(input="x", tools=TOOLS, reasoning={"summary": summary}, include=["reasoning.encrypted_content"])
    more: dict[str, Any] = {"text": "ab", "reasoning": "r", "tool_calls": CALLS, "finish_reason": "tool_calls"}
    values = finish(request, ReasoningDelta("r"), TextDelta("a"), TextDelta("b"), **more)
    assert values[-1]["response"] == whole(reply(request, **more))


def test_logprobs_when_asked_for() -> None:
    """With the include, the text's tokens come with their logprobs, at the text's end and in the whole answer; else there are none."""
    token = TokenLogprob("hi", [104, 105], -0.5, (TokenLogprob("ho", [104, 111], -1.5),))
    request = parse(input="x", include=["message.output_text.logprobs"], top_logprobs=1)
    assert request.top_logprobs == 1
    values = finish(request, TextDelta("hi"), text="hi", logprobs=(token,))
    expected = [
        {
            "token": "hi",
            "bytes": [104, 105],
            "logprob": -0.5,
            "top_logprobs": [{"token": "ho", "bytes": [104, 111], "logprob": -1.5}],
        }
    ]
    assert of(values, "response.output_text.done")[0]["logprobs"] == expected
    assert values[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected
    assert whole(reply(request, text="hi", logprobs=(token,)))["output"] == values[-1]["response"]["output"]
    assert parse(input="x").top_logprobs is None
    assert parse(input="x", include=["message.output_text.logprobs"]).top_logprobs == 0
    with pytest.raises(ProxyError, match="up to 20"):
        parse(input="x", top_logprobs=21)
