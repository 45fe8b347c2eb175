"""Tools of Chat Completions beyond plain functions, there and back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capture_proxy.dialects.openai_chat import DIALECT
from capture_proxy.reply import ChatRequest, Finished, ProxyError, Reply, Started, ToolCall
from tests.capture_proxy.wire import events

COMPLETION = "00000000-0000-4000-8000-000000000000"
FUNCTION = {"name": "ls", "parameters": {"type": "object"}}
CUSTOM = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Edits.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: X"}},
    },
}


def read(**body: Any) -> ChatRequest:
    """A request with one user message, unless a test brings its own."""
    value = {"model": "m", "messages": [{"role": "user", "content": "x"}], **body}
    return DIALECT.parse_request("", {}, orjson.dumps(value))


def answer(request: ChatRequest, *calls: ToolCall) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the whole answer's choice, the stream's deltas and finish reasons)."""
    reply = Reply(
        completion_id=COMPLETION,
        model="m",
        text="",
        tool_calls=calls,
        finish_reason="tool_calls",
        prompt_tokens=1,
        completion_tokens=1,
        echo=request.echo,
    )
    encoder = DIALECT.stream_encoder(request)
    out = encoder.encode(Started(COMPLETION, "m", 0, 1)) + encoder.encode(Finished(reply))
    choices = [choice for event in events(out.decode()) for choice in event["choices"]]
    return orjson.loads(DIALECT.encode_whole(reply))["choices"][0], choices


def test_a_freeform_tool_goes_there_and_back() -> None:
    """A function with one string for the model; raw text for the client, whole and streamed; the same again in history."""
    request = read(tools=[CUSTOM], tool_choice={"type": "custom", "custom": {"name": "patch"}})
    [tool] = request.tools
    assert tool["function"]["parameters"]["required"] == ["input"]
    assert "lark grammar:\nstart: X" in tool["function"]["description"]
    assert request.tool_choice == {"type": "function", "function": {"name": "patch"}}
    raw = 'é "q" \\n\n'
    call = ToolCall("c1", "patch", orjson.dumps({"input": raw}).decode())
    whole, streamed = answer(request, call)
    expected = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": raw}}
    assert whole["message"]["tool_calls"] == [expected]
    assert [c["delta"]["tool_calls"] for c in streamed if "tool_calls" in c["delta"]] == [[{"index": 0, **expected}]]
    again = read(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [expected]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ]
    )
    [known] = again.messages[1]["tool_calls"]
    assert orjson.loads(known["function"]["arguments"]) == {"input": raw}
    assert known["function"]["name"] == "patch"


def test_the_form_before_tools() -> None:
    """`functions` in the request: one call is a `function_call`; several don't fit and come as tool calls."""
    request = read(functions=[FUNCTION], function_call={"name": "ls"})
    assert [tool["function"]["name"] for tool in request.tools] == ["ls"]
    assert request.tool_choice == {"type": "function", "function": {"name": "ls"}}
    one = ToolCall("c1", "ls", '{"a":1}')
    whole, streamed = answer(request, one)
    assert whole["message"]["function_call"] == {"name": "ls", "arguments": '{"a":1}'}
    assert "tool_calls" not in whole["message"]
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "function_call"
    assert [c["delta"]["function_call"] for c in streamed if "function_call" in c["delta"]] == [
        {"name": "ls", "arguments": '{"a":1}'}
    ]
    whole, streamed = answer(request, one, ToolCall("c2", "ls", "{}"))
    assert [call["id"] for call in whole["message"]["tool_calls"]] == ["c1", "c2"]
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "expected", "note"),
    [
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}, "required", "not enforced: tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "auto", "not enforced: tool_choice.allowed_tools"),
        ({"type": "web_search"}, "auto", "dropped: tool_choice of type web_search"),
    ],
)  # fmt: skip
def test_choices_that_a_local_model_isnt_bound_to(choice: Any, expected: str, note: str) -> None:
    """Read as the nearest thing, and named."""
    request = read(tools=[{"type": "function", "function": FUNCTION}], tool_choice=choice)
    assert request.tool_choice == expected
    assert note in request.notes


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "a", "format": "wav"}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools.0.custom.name"),
        ({"tools": ["x"]}, "tools.0"),
    ],
)
def test_what_cant_be_given_is_refused(body: dict[str, Any], param: str) -> None:
    """The error names the field."""
    with pytest.raises(ProxyError) as caught:
        read(**body)
    assert (caught.value.kind, caught.value.param) == ("bad_request", param)


def test_harmless_forms_of_refused_fields() -> None:
    """Their neutral values pass."""
    request = read(modalities=["text"], audio=None, logit_bias={}, logprobs=False, top_logprobs=0, n=1)
    assert request.notes == ()


@pytest.mark.parametrize(
    ("body", "switches"),
    [
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
def test_switches_of_thinking(body: dict[str, Any], switches: dict[str, Any]) -> None:
    """Every spelling ends in the template's switches."""
    assert read(**body).template_kwargs == switches
