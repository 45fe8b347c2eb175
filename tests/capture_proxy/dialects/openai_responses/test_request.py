"""Responses requests: controls, tools, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capture_proxy.dialects.freeform import freeform_input
from capture_proxy.dialects.openai_responses.ids import response_id
from capture_proxy.reply import ProxyError, ToolCall
from tests.capture_proxy.dialects.openai_responses.said import COMPLETION, finish, parse, reply, whole

SH = {
    "type": "function",
    "name": "sh",
    "strict": False,
    "parameters": {"type": "object", "properties": {"c": {"type": "array", "items": {"type": "string"}}}},
}
GIT = {
    "type": "namespace",
    "name": "mcp__git",
    "description": "About git.",
    "tools": [
        {"type": "function", "name": "log", "description": "Shows commits.", "parameters": {"type": "object"}},
        {"type": "function", "name": "diff", "parameters": {"type": "object", "properties": {}}},
    ],
}


def test_a_plain_request() -> None:
    """A string is a user message; controls get Chat's names."""
    request = parse(input="hi", max_output_tokens=9, temperature=0.5, top_p=0.9, stream=True, parallel_tool_calls=False)
    assert request.messages == [{"role": "user", "content": "hi"}]
    assert request.sampling == {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9}
    assert (request.dialect, request.model, request.stream) == ("openai_responses", "m", True)
    assert not request.parallel_tool_calls
    assert (request.tools, request.tool_choice, request.response_format, request.notes) == ([], None, None, ())


def test_b56_a_freeform_tool_is_a_function_of_one_string() -> None:
    """The model sees a function with one string parameter, and the grammar in words."""
    grammar = "start: LINE+\nLINE: /[^\\n]*\\n/"
    custom = {
        "type": "custom",
        "name": "apply_patch",
        "description": "edit files",
        "format": {"type": "grammar", "syntax": "lark", "definition": grammar},
    }
    request = parse(store=False, stream=True, input="edit a.txt", tools=[custom])
    [tool] = request.tools
    assert tool["function"]["name"] == "apply_patch"
    assert tool["function"]["parameters"]["required"] == ["input"]
    assert tool["function"]["parameters"]["properties"].keys() == {"input"}
    assert tool["function"]["description"] == f"edit files\n\nThe input must match this lark grammar:\n{grammar}"
    assert request.notes == ("carried as text: grammar of a custom tool",)


@pytest.mark.parametrize(
    ("arguments", "raw"),
    [
        ('{"input":"a\\n\\"\\\\ü"}', 'a\n"\\ü'),
        ('"bare"', "bare"),
        ('{"patch":"p"}', "p"),
        ('{"input":"i","note":"n"}', "i"),
        ('{"a":"1","b":"2"}', '{"a":"1","b":"2"}'),
        ('{"input":{"x":1}}', '{"input":{"x":1}}'),
        ("not json", "not json"),
    ],
)
def test_b56_unwrapping(arguments: str, raw: str) -> None:
    """The one string is unwrapped whatever its key; what is ambiguous passes as it is."""
    assert freeform_input(arguments) == raw


def test_b58_namespaces_are_distinct_names_and_come_back() -> None:
    """Three tools that the model can tell apart; each call goes back in the client's own form."""
    request = parse(input="x", tools=[GIT, SH | {"name": "log"}])
    names = [tool["function"]["name"] for tool in request.tools]
    assert sorted(names) == ["log", "mcp__git__diff", "mcp__git__log"]
    described = {tool["function"]["name"]: tool["function"].get("description") for tool in request.tools}
    assert described["mcp__git__log"] == "About git.\n\nShows commits."
    assert described["mcp__git__diff"] is None
    calls = tuple(ToolCall(f"call_{i}", name, "{}") for i, name in enumerate(["log", "mcp__git__log", "unknown"]))
    values = finish(request, tool_calls=calls, finish_reason="tool_calls")
    for output in (values[-1]["response"]["output"], whole(reply(request, tool_calls=calls))["output"]):
        assert [(item["name"], item.get("namespace")) for item in output] == [
            ("log", None),
            ("log", "mcp__git"),
            ("unknown", None),
        ]


def test_b58_names_that_collide() -> None:
    """A plain tool keeps its name; the one in a namespace gives way, and still comes back right."""
    request = parse(input="x", tools=[GIT, SH | {"name": "mcp__git__log"}, SH | {"name": "mcp__git__log"}])
    assert [tool["function"]["name"] for tool in request.tools] == [
        "mcp__git__log",
        "mcp__git__log_2",
        "mcp__git__diff",
    ]
    assert request.notes == ("dropped: a second tool of the same name",)
    [item] = whole(reply(request, tool_calls=(ToolCall("call_1", "mcp__git__log_2", "{}"),)))["output"]
    assert (item["name"], item["namespace"]) == ("log", "mcp__git")


def test_a_freeform_tool_in_a_namespace() -> None:
    """Both forms together: raw text, name and namespace."""
    namespace = {
        "type": "namespace",
        "name": "functions",
        "description": "",
        "tools": [{"type": "custom", "name": "exec"}],
    }
    request = parse(input="x", tools=[namespace])
    [item] = whole(reply(request, tool_calls=(ToolCall("call_1", "functions__exec", '{"input":"js"}'),)))["output"]
    assert (item["type"], item["name"], item["namespace"], item["input"]) == (
        "custom_tool_call",
        "exec",
        "functions",
        "js",
    )


def test_b59_hosted_tools_do_not_fail_the_request() -> None:
    """Only what the client runs is shown to the model; the rest is dropped by name."""
    hosted = ["web_search", "local_shell", "image_generation", "tool_search", "brand_new_2027"]
    request = parse(
        input="x", tool_choice="auto", parallel_tool_calls=True, tools=[*({"type": kind} for kind in hosted), SH]
    )
    assert [tool["function"]["name"] for tool in request.tools] == ["sh"]
    assert request.tools[0]["function"]["parameters"] == SH["parameters"]
    assert request.tool_choice == "auto"
    assert set(request.notes) == {f"dropped hosted tool: {kind}" for kind in hosted}


def test_tools_in_the_input() -> None:
    """Tools that travel as an input item are tools all the same."""
    item = {"type": "additional_tools", "role": "developer", "tools": [SH]}
    request = parse(input=[item, {"role": "user", "content": "x"}], tools=[GIT])
    assert [tool["function"]["name"] for tool in request.tools] == ["mcp__git__log", "mcp__git__diff", "sh"]
    assert request.messages == [{"role": "user", "content": "x"}]
    assert request.notes == ("moved to the head of the prompt: additional_tools",)


@pytest.mark.parametrize(
    ("choice", "expected", "note"),
    [
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "name": "sh"}, {"type": "function", "function": {"name": "sh"}}, None),
        (
            {"type": "function", "name": "log", "namespace": "mcp__git"},
            {"type": "function", "function": {"name": "mcp__git__log"}},
            None,
        ),
        ({"type": "function", "name": "gone"}, "auto", "dropped: tool_choice of a removed tool"),
        ({"type": "web_search"}, "auto", "dropped: tool_choice of a hosted tool: web_search"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "sh"}]},
            "required",
            "not enforced: tool_choice.allowed_tools",
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "auto", "not enforced: tool_choice.allowed_tools"),
    ],
)
def test_b59_tool_choice(choice: Any, expected: Any, note: str | None) -> None:
    """Every form has its meaning; one for a hosted tool means `auto`."""
    request = parse(input="x", tools=[SH, GIT], tool_choice=choice)
    assert request.tool_choice == expected
    assert request.notes == ((note,) if note else ())


def test_b61_a_previous_response_is_a_completion() -> None:
    """Our id decodes to its call; results without their call wait for it; nothing new is fine too."""
    sent = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    request = parse(previous_response_id=response_id(COMPLETION), input=[sent])
    assert request.continues == COMPLETION
    assert request.messages == [{"role": "tool", "tool_call_id": "c1", "content": "ok"}]
    assert request.notes == ()
    assert parse(previous_response_id=response_id(COMPLETION)).messages == []


@pytest.mark.parametrize("unknown", ["resp_1", "", 7, f"chatcmpl-{COMPLETION}"])
def test_b61_an_unknown_id_is_not_an_empty_history(unknown: Any) -> None:
    """An id that was never ours is refused with the vendor's own code."""
    with pytest.raises(ProxyError) as caught:
        parse(previous_response_id=unknown, input="x")
    assert (caught.value.status, caught.value.code, caught.value.param) == (
        400,
        "previous_response_not_found",
        "previous_response_id",
    )


def test_b64_structured_output() -> None:
    """A schema travels under Chat's name; plain text and verbosity ask for nothing."""
    schema = {"type": "object", "properties": {"names": {"type": "array"}}, "additionalProperties": False}
    wanted = {"type": "json_schema", "name": "Colours", "strict": True, "schema": schema}
    request = parse(input="x", text={"verbosity": "low", "format": wanted})
    assert request.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "Colours", "strict": True, "schema": schema},
    }
    assert request.notes == ("repeated, without effect: text.verbosity",)
    assert parse(input="x", text={"format": {"type": "text"}}).response_format is None
    assert parse(input="x", text={"verbosity": "low"}).response_format is None
    assert parse(input="x", text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}


@pytest.mark.parametrize("wanted", [{"type": "grammar"}, {"type": "json_schema", "name": "n"}, {}, "json", 7])
def test_b64_an_unknown_format_is_refused(wanted: Any) -> None:
    """Rather than free prose the client gets an error that names the field."""
    if wanted == {}:
        assert parse(input="x", text={"format": wanted}).response_format is None
        return
    with pytest.raises(ProxyError) as caught:
        parse(input="x", text={"format": wanted})
    assert (caught.value.status, caught.value.param) == (400, "text.format")


def test_reasoning_effort_reaches_the_template() -> None:
    """Effort is the template's; `none` switches thinking off; explicit template arguments win."""
    assert parse(input="x", reasoning={"effort": "high"}).template_kwargs == {"reasoning_effort": "high"}
    assert parse(input="x", reasoning={"effort": "none"}).template_kwargs["enable_thinking"] is False
    both = parse(input="x", reasoning={"effort": "low"}, chat_template_kwargs={"reasoning_effort": "high"})
    assert both.template_kwargs == {"reasoning_effort": "high"}
    assert parse(input="x", reasoning={"context": "all_turns"}).notes == ("ignored field: reasoning.context",)


@pytest.mark.parametrize(
    ("field", "value"), [("background", True), ("conversation", "conv_1"), ("prompt", {"id": "pmpt_1"})]
)
def test_what_needs_a_store_is_refused(field: str, value: Any) -> None:
    """Refused on purpose, by name."""
    with pytest.raises(ProxyError) as caught:
        parse(input="x", **{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)
    assert parse(input="x", **{field: None}).notes == ()


def test_every_other_field_is_named() -> None:
    """Nothing is dropped in silence: fields without effect are noted, those that a response repeats are repeated."""
    repeated = {
        "metadata": {"k": "v"},
        "prompt_cache_key": "p",
        "safety_identifier": "s",
        "user": "u",
        "truncation": "auto",
        "service_tier": "flex",
        "max_tool_calls": 3,
        "store": False,
        "instructions": "i",
    }
    request = parse(
        input="x",
        client_metadata={"a": 1},
        stream_options={"include_obfuscation": False},
        include=["reasoning.encrypted_content", "web_search_call.results"],
        background=False,
        brand_new_2027=1,
        **repeated,
    )
    assert request.notes == (
        "ignored field: brand_new_2027",
        "ignored field: client_metadata",
        "ignored include: web_search_call.results",
        "repeated, without effect: max_tool_calls",
        "repeated, without effect: metadata",
        "repeated, without effect: prompt_cache_key",
        "repeated, without effect: safety_identifier",
        "repeated, without effect: service_tier",
        "repeated, without effect: truncation",
        "repeated, without effect: user",
    )
    answer = whole(reply(request))
    assert {name: answer[name] for name in repeated} == repeated


def test_an_answer_repeats_the_tools() -> None:
    """Clients' types need the tools, the choice and the parallel flag; what was left out has the vendor's default."""
    answer = whole(reply(parse(input="x", tools=[{"type": "function", "name": "f"}, GIT])))
    assert answer["tools"][0] == {
        "type": "function",
        "name": "f",
        "description": None,
        "parameters": None,
        "strict": False,
    }
    assert answer["tools"][1] == GIT
    assert (answer["tool_choice"], answer["parallel_tool_calls"], answer["metadata"]) == ("auto", True, {})
    assert (answer["text"], answer["truncation"]) == ({"format": {"type": "text"}}, "disabled")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": ["x"]}, "tools.0"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [{"type": "custom", "name": ""}]}, "tools.0.name"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools.0.tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [1]}]}, "tools.0.tools.0"),
        ({"tools": {}}, "tools"),
        ({"instructions": ["x"]}, "instructions"),
        ({"text": "x"}, "text"),
        ({"include": "x"}, "include"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_wrong_types_are_named(body: dict[str, Any], param: str) -> None:
    """The error says which field is wrong."""
    with pytest.raises(ProxyError) as caught:
        parse(input="x", **body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_token_count() -> None:
    """The vendor's shape of a count."""
    from capture_proxy.dialects.openai_responses import DIALECT

    assert orjson.loads(DIALECT.encode_count(7)) == {"object": "response.input_tokens", "input_tokens": 7}
