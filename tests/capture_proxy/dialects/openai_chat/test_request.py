"""Chat Completions requests, normalised."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capture_proxy.dialects.openai_chat.request import parse_request
from capture_proxy.reply import ChatRequest, ProxyError
from capture_proxy.turn_ids import turn_token
from schemas import ids


def read(**body: Any) -> ChatRequest:
    """A request with defaults for what a test doesn't care about."""
    value = {"model": "m", "messages": [{"role": "user", "content": "x"}], **body}
    return parse_request("/v1/chat/completions", {}, orjson.dumps(value))


def call(arguments: Any = "{}", call_id: str = "c1") -> dict[str, Any]:
    """A tool call in history."""
    return {"id": call_id, "type": "function", "function": {"name": "ls", "arguments": arguments}}


@pytest.mark.parametrize("content", [None, "", [], "absent"])
def test_empty_content_has_one_form(content: Any) -> None:
    """null, "", [] and missing content are the same assistant turn."""
    message: dict[str, Any] = {"role": "assistant", "tool_calls": [call()]}
    if content != "absent":
        message["content"] = content
    request = read(
        messages=[{"role": "user", "content": "x"}, message, {"role": "tool", "tool_call_id": "c1", "content": "a"}]
    )
    assert request.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call()]}


def test_a_truncated_call_in_history_is_kept_as_it_is() -> None:
    """Half a JSON text from an earlier turn never makes the request fail."""
    request = read(
        messages=[
            {"role": "user", "content": "w"},
            {"role": "assistant", "content": None, "tool_calls": [call('{"p":"/a')]},
        ]
    )
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"p":"/a'


def test_text_parts_join_and_reasoning_has_one_name() -> None:
    """Part lists become one string; both spellings of reasoning are read once."""
    request = read(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "t", "reasoning": "r", "reasoning_content": "r"},
        ]
    )
    assert request.messages[0] == {"role": "system", "content": "a\nb"}
    assert request.messages[2] == {"role": "assistant", "content": "t", "reasoning_content": "r"}


def test_unknown_keys_never_reach_the_normal_form() -> None:
    """Messages, calls and tools hold known keys only."""
    request = read(
        messages=[
            {"role": "user", "content": "x", "cache_control": {}},
            {"role": "assistant", "content": "", "tool_calls": [{**call(), "index": 0}], "audio": None},
            {"role": "tool", "tool_call_id": "c1", "content": "a", "is_error": True},
        ],
        tools=[{"type": "function", "function": {"name": "ls", "parameters": {}, "strict": True}, "x": 1}],
    )
    assert [set(m) for m in request.messages] == [
        {"role", "content"},
        {"role", "content", "tool_calls"},
        {"role", "tool_call_id", "content"},
    ]
    assert request.messages[1]["tool_calls"] == [call()]
    assert request.tools == [{"type": "function", "function": {"name": "ls", "parameters": {}}}]


def test_sampling_and_switches() -> None:
    """Names, limits, stops, template switches and usage."""
    request = read(
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=4,
        stop="S",
        presence_penalty=None,
        stream=True,
        stream_options={"include_usage": True},
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        store=False,
    )
    assert request.sampling == {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 4,
        "max_tokens": 7,
        "stop": ["S"],
    }
    assert (request.stream, request.include_usage) == (True, True)
    assert request.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    assert request.notes == ("ignored field: store",)


def test_hosted_tools_and_dead_choices_are_dropped() -> None:
    """A hosted tool is dropped and named; a forced choice of a tool that isn't there becomes auto."""
    tool = {"type": "function", "function": {"name": "ls"}}
    request = read(tools=[tool, {"type": "web_search"}], tool_choice={"type": "function", "function": {"name": "gone"}})
    assert request.tools == [tool]
    assert request.tool_choice == "auto"
    assert request.notes == ("dropped hosted tool: web_search", "dropped: tool_choice of a removed tool")
    assert read(tool_choice="required").tool_choice is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 3}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "x"}]}, "messages.0.role"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"stop": 3}, "stop"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_bad_requests_name_the_field(body: dict[str, Any], param: str) -> None:
    """The error says where; several answers per request are refused rather than mixed."""
    with pytest.raises(ProxyError) as raised:
        read(**body)
    assert (raised.value.kind, raised.value.param) == ("bad_request", param)


def test_images_stay_and_other_media_become_text() -> None:
    """Images are for the renderer to judge; audio and files have fixed placeholders."""
    request = read(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                    {"type": "text", "text": "see"},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "file", "file": {"filename": "f"}},
                ],
            },
        ]
    )
    assert request.messages[0]["content"][0]["image_url"]["url"].startswith("data:image/png")
    assert request.messages[1]["content"] == "[audio: wav, 3 bytes]\n[file: f]"


def test_reasoning_details_and_refusals_in_history() -> None:
    """Reasoning is read from the details where nothing else has it, with our mark in them; a refusal is what was said."""
    completion = ids.completion_id("lease", 1, 1)
    request = read(
        messages=[
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": None,
                "refusal": "No.",
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "a", "signature": "foreign"},
                    {"type": "reasoning.summary", "summary": "b"},
                    {"type": "reasoning.encrypted", "data": turn_token(completion)},
                ],
                "audio": {"id": "a1"},
            },
            {"role": "user", "content": "y", "name": "Ann"},
        ]
    )
    assert request.messages[1] == {"role": "assistant", "content": "No.", "reasoning_content": "a\nb"}
    assert request.turn_ids == ("", completion, "")
    assert request.notes == ("ignored message field: audio", "ignored message field: name")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": "x"},
        {"type": "file", "file": []},
        {"type": "image_url", "image_url": None},
        {"type": ["odd"]},
        7,
        None,
    ],
)
def test_parts_of_the_wrong_type_are_no_crash(part: Any) -> None:
    """Something stands in their place, or the request is refused."""
    assert read(messages=[{"role": "user", "content": [part]}]).messages[0]["content"] is not None
