"""Messages requests, normalised."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capture_proxy.dialects.anthropic.request import parse_request
from capture_proxy.reply import ChatRequest, ProxyError

ALLOWED_KEYS = {"role", "content", "tool_call_id", "tool_calls", "name", "reasoning_content"}


def read(headers: dict[str, str] | None = None, **body: Any) -> ChatRequest:
    """A request with defaults for what a test doesn't care about."""
    value = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}], **body}
    request = parse_request("/v1/messages?beta=true", headers or {}, orjson.dumps(value))
    for message in request.messages:
        assert set(message) <= ALLOWED_KEYS
    return request


def tool_turn(*results: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation with one call per result, and the results in one user message."""
    ids = [block["tool_use_id"] for block in results if block["type"] == "tool_result"]
    uses = [{"type": "tool_use", "id": i, "name": "Bash", "input": {}} for i in dict.fromkeys(sorted(ids))]
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": list(results)},
    ]


def result(call_id: str, **more: Any) -> dict[str, Any]:
    """A tool_result block."""
    return {"type": "tool_result", "tool_use_id": call_id, **more}


@pytest.mark.parametrize(
    ("block", "content"),
    [
        ({"is_error": True, "content": "exit 2"}, "Error:\nexit 2"),
        ({"is_error": True}, "Error:"),
        ({"is_error": False, "content": "ok"}, "ok"),
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "search_result", "title": "Doc", "source": "https://e.example", "content": [{"type": "text", "text": "hit"}]}]}, "Doc\nhttps://e.example\nhit"),
        ({"content": [{"type": "hologram"}]}, "[unsupported block: hologram]"),
    ],
)  # fmt: skip
def test_tool_results(block: dict[str, Any], content: str) -> None:
    """A failed tool is marked in the text; empty forms are one; exotic blocks become text."""
    request = read(messages=tool_turn(result("t1", **block)))
    assert request.messages[2] == {"role": "tool", "tool_call_id": "t1", "content": content}


def test_results_come_first_then_the_text_in_order() -> None:
    """Text around results moves behind them as one user message."""
    text = [{"type": "text", "text": t} for t in ("<note>", "mid", "now")]
    request = read(
        messages=tool_turn(text[0], result("t2", content="two"), text[1], result("t1", content="one"), text[2])
    )
    assert request.messages[2:] == [
        {"role": "tool", "tool_call_id": "t2", "content": "two"},
        {"role": "tool", "tool_call_id": "t1", "content": "one"},
        {"role": "user", "content": "<note>\nmid\nnow"},
    ]


def test_system_forms_and_cache_marks_leave_no_trace() -> None:
    """A string, its one-block form and moved cache marks give the same request."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    plain = read(system="A", tools=[{"name": "t", "input_schema": {"type": "object"}}])
    marked = read(
        system=[{"type": "text", "text": "A", **mark}],
        tools=[{"name": "t", "input_schema": {"type": "object"}, **mark}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}],
    )
    assert plain == marked
    assert (
        read(system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]).messages[0]["content"] == "A\n\nB"
    )


def test_a_billing_header_is_not_for_the_model() -> None:
    """It differs per conversation and would spoil every shared prefix; dropping it is noted."""
    request = read(system=[{"type": "text", "text": "x-anthropic-billing-header: cc=1"}, {"type": "text", "text": "S"}])
    assert request.messages[0] == {"role": "system", "content": "S"}
    assert "dropped: billing header in the system prompt" in request.notes


def test_system_messages_stay_in_place() -> None:
    """A mid-conversation system message is never hoisted; one that only carries controls gives no message."""
    request = read(
        system="S",
        messages=[
            {"role": "user", "content": "q1"},
            {"role": "assistant", "content": "a1"},
            {"role": "system", "content": [{"type": "text", "text": "Helpers: x"}]},
            {"role": "system", "content": [], "output_config": {"effort": "high"}},
            {"role": "user", "content": "q2"},
        ],
    )
    assert [m["role"] for m in request.messages] == ["system", "user", "assistant", "system", "user"]
    assert request.messages[3]["content"] == "Helpers: x"


def test_thinking_goes_to_the_reasoning_channel() -> None:
    """Signatures are accepted and ignored, redacted thinking adds nothing, thinking never becomes visible text."""
    blocks = [
        {"type": "thinking", "thinking": "plan", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "thinking", "thinking": "more", "signature": ""},
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {"b": 1, "a": "ü"}},
    ]
    request = read(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": blocks}])
    message = request.messages[1]
    assert message["reasoning_content"] == "plan\nmore"
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"b":1,"a":"ü"}'}
    alone = read(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": blocks[:1]}])
    assert alone.messages[1] == {"role": "assistant", "content": "", "reasoning_content": "plan"}


def test_new_fields_and_betas_are_tolerated_and_listed() -> None:
    """Each release adds fields; they are ignored and named once."""
    request = read(
        {"Anthropic-Beta": "a-1, b-2"},
        thinking={"type": "adaptive", "budget_tokens": 0},
        output_config={"effort": "xhigh"},
        context_management={"edits": []},
        metadata={"user_id": "u"},
        container=None,
    )
    assert request.template_kwargs == {"enable_thinking": True}
    assert request.notes == (
        "ignored beta: a-1",
        "ignored beta: b-2",
        "ignored field: context_management",
        "ignored field: metadata",
        "ignored field: output_config.effort",
        "ignored field: thinking.budget_tokens",
    )
    assert read(thinking={"type": "disabled"}).template_kwargs == {"enable_thinking": False}
    assert read().template_kwargs == {}


def test_a_choice_of_a_dropped_hosted_tool_degrades() -> None:
    """No tools and no tool_choice are left, and the record says why."""
    request = read(
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "tool", "name": "web_search"},
    )
    assert request.tools == []
    assert request.tool_choice is None
    assert set(request.notes) == {"dropped hosted tool: web_search_20250305", "dropped: tool_choice without tools"}


@pytest.mark.parametrize(
    ("choice", "expected", "is_parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any"}, "required", True),
        ({"type": "tool", "name": "Read"}, {"type": "function", "function": {"name": "Read"}}, True),
        ({"type": "none"}, "none", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        (None, None, True),
    ],
)
def test_tool_choice(choice: Any, expected: Any, is_parallel: bool) -> None:
    """Every form maps to its own; with none the tools stay in the prompt."""
    request = read(tools=[{"name": "Read", "input_schema": {"type": "object"}}], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (expected, is_parallel)
    assert len(request.tools) == 1


def test_schemas_pass_untouched() -> None:
    """References, unions and key order are the prompt's data; a missing schema is an empty object."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"Node": {"properties": {"kids": {"items": {"$ref": "#/$defs/Node"}}}}},
        "properties": {"u": {"type": ["string", "null"]}, "items": {"not": {"type": "string"}}},
    }
    request = read(tools=[{"name": "q", "input_schema": schema}, {"name": "r"}])
    assert orjson.dumps(request.tools[0]["function"]["parameters"]) == orjson.dumps(schema)
    assert request.tools[1]["function"]["parameters"] == {"type": "object", "properties": {}}


def test_deferred_tools_stand_where_they_are_referenced() -> None:
    """The head of the prompt doesn't change when a tool search brings tools in; the reference is text with the schema."""
    search = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    deferred = {"name": "mcp__a__b", "defer_loading": True, "input_schema": {"type": "object", "properties": {"z": {}}}}
    reference = [{"type": "tool_reference", "tool_name": "mcp__a__b"}]
    request = read(tools=[search, deferred], messages=tool_turn(result("t1", content=reference)))
    assert request.tools == read(tools=[search]).tools
    assert '"name":"mcp__a__b"' in request.messages[2]["content"]
    assert '"z"' in request.messages[2]["content"]


def test_documents_and_images() -> None:
    """Text documents are inlined with their title, binary ones become placeholders, images stay parts, in order."""
    request = read(
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                        "title": "spec.pdf",
                    },
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "plain body"},
                        "title": "T",
                    },
                    {"type": "text", "text": "read"},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}],
            },
        ]
    )
    assert request.messages[0]["content"] == "[document: spec.pdf, application/pdf, 5 bytes]\nT\nplain body\nread"
    assert request.messages[1]["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


def test_sampling_names() -> None:
    """The vendor's names become ours; counting needs no max_tokens."""
    request = read(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["X"], stream=True)
    assert request.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "max_tokens": 64, "stop": ["X"]}
    assert request.stream
    assert "max_tokens" not in read(max_tokens=None).sampling


def test_a_json_schema_is_a_response_format() -> None:
    """Structured output keeps its schema."""
    request = read(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert request.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages.0.role"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{}]}, "tools.0.name"),
        ({"system": 1}, "system"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_bad_requests_name_the_field(body: dict[str, Any], param: str) -> None:
    """The error says where."""
    with pytest.raises(ProxyError) as raised:
        read(**body)
    assert (raised.value.kind, raised.value.param) == ("bad_request", param)


def test_message_threads_are_refused() -> None:
    """The client sends the conversation whole after a 400 that names the field."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        with pytest.raises(ProxyError, match="send the whole conversation") as caught:
            read(thread=thread)
        assert (caught.value.status, caught.value.param) == (400, "thread")
    assert read(thread=None).notes == ()


@pytest.mark.parametrize(
    ("kind", "name", "parameter"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "new_path"),
        ("computer_20251124", "computer", "coordinate"),
    ],
)
def test_vendor_defined_tools_that_the_client_runs(kind: str, name: str, parameter: str) -> None:
    """The model is told what they take, under the name that the client listens to."""
    screen = {"display_width_px": 800, "display_height_px": 600} if name == "computer" else {}
    request = read(tools=[{"type": kind, "name": name, **screen}])
    [tool] = request.tools
    assert tool["function"]["name"] == name
    assert parameter in tool["function"]["parameters"]["properties"]
    assert not [note for note in request.notes if note.startswith("dropped")]
    assert ("800 x 600" in tool["function"]["description"]) == (name == "computer")


def test_structured_output_in_both_places() -> None:
    """`output_config.format`, or the older `output_format`; anything else in it is refused by name."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"type": "json_schema", "schema": schema}
    for body in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        found = read(**body).response_format
        assert found is not None
        assert found["json_schema"]["schema"] == schema
    with pytest.raises(ProxyError) as caught:
        read(output_config={"format": {"type": "xml"}})
    assert caught.value.param == "output_config.format"


def test_hosted_servers_and_fields_of_tools() -> None:
    """What the vendor would run is dropped, what isn't enforced is named."""
    request = read(
        mcp_servers=[{"type": "url", "url": "https://mcp.example", "name": "x"}],
        tools=[
            {"type": "mcp_toolset", "mcp_server_name": "x"},
            {"name": "t", "input_schema": {"type": "object"}, "strict": True, "eager_input_streaming": False},
        ],
    )
    assert [tool["function"]["name"] for tool in request.tools] == ["t"]
    assert request.notes == (
        "dropped hosted tool: mcp_toolset",
        "dropped: mcp_servers, which the vendor would call",
        "ignored tool field: strict",
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": "x"},
        {"type": "document", "source": [1]},
        {"type": "search_result", "content": 5},
        {"type": "tool_result", "tool_use_id": 5, "content": {"a": 1}},
        {"type": {"a": 1}},
        {"type": "document", "source": {"type": "content", "content": [None, 7]}},
    ],
)
def test_blocks_of_the_wrong_type_are_no_crash(block: Any) -> None:
    """Something stands in their place."""
    assert read(messages=[{"role": "user", "content": [block]}]).messages
