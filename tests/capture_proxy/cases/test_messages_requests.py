"""Cases of Messages requests: what the model is told, whatever shape a client's history has."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

from capture_proxy.dialects.anthropic.request import parse_request
from capture_proxy.rendering import Renderer
from capture_proxy.reply import ChatRequest
from capture_proxy.turn_ids import turn_token
from schemas import ids
from tests.capture_proxy.cases.asking import KEYS, chat_request, messages_request

COMPLETION = ids.completion_id("lease", 1, 1)


def use(call_id: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    """A tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "", **more: Any) -> dict[str, Any]:
    """A tool_result block."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*blocks: Any) -> dict[str, Any]:
    """A user message."""
    return {
        "role": "user",
        "content": list(blocks) if not (len(blocks) == 1 and isinstance(blocks[0], str)) else blocks[0],
    }


def assistant(*blocks: Any) -> dict[str, Any]:
    """An assistant message."""
    return {"role": "assistant", "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": words, **more}


def ids_of(renderer: Renderer, request: ChatRequest) -> list[int]:
    """The prompt's ids."""
    return renderer.render(request.messages, request.tools, request.template_kwargs)


@pytest.mark.parametrize(
    ("block", "content"),
    [
        ({"is_error": True, "content": "exit 2"}, "Error:\nexit 2"),
        ({"is_error": False, "content": "exit 2"}, "exit 2"),
        ({"content": "exit 2"}, "exit 2"),
        ({"is_error": True, "content": ""}, "Error:"),
        ({"is_error": True, "content": [text("exit 2")]}, "Error:\nexit 2"),
    ],
)
def test_b1_a_failed_tool_result_doesnt_look_like_success(block: dict[str, Any], content: str) -> None:
    """The mark stands in the text, the same bytes on every turn; a success has none, and an error without words isn't empty."""
    history = [user("build it"), assistant(use("toolu_a1")), user({**result("toolu_a1"), **block})]
    first, later = (
        messages_request(messages=history),
        messages_request(messages=[*history, assistant(text("x")), user("y")]),
    )
    assert first.messages[2] == {"role": "tool", "tool_call_id": "toolu_a1", "content": content}
    assert later.messages[:3] == first.messages


def test_b2_no_foreign_key_reaches_the_upstream() -> None:
    """A strict server would refuse every later turn because of one key in the history."""
    request = messages_request(
        system=[text("S", cache_control={"type": "ephemeral"})],
        messages=[
            user(text("go", cache_control={"type": "ephemeral"}, citations=[])),
            assistant(
                {"type": "thinking", "thinking": "t", "signature": turn_token(COMPLETION)},
                {**use("a"), "caller": {"type": "direct"}, "cache_control": {"type": "ephemeral"}},
            ),
            user(result("a", "e", is_error=True, cache_control={"type": "ephemeral"})),
        ],
    )
    assert all(set(message) <= KEYS for message in request.messages)
    [call] = request.messages[2]["tool_calls"]
    assert set(call) == {"id", "type", "function"}
    assert set(call["function"]) == {"name", "arguments"}


def test_b4_results_without_content_and_exotic_blocks() -> None:
    """No content, null and [] are the same empty text; what can be said of other blocks is said."""
    hit = {"type": "search_result", "title": "Doc", "source": "https://e.example", "content": [text("hit")]}
    missing = {"type": "tool_result", "tool_use_id": "t1"}
    request = messages_request(
        messages=[
            user("go"),
            assistant(*(use(f"t{n}") for n in range(1, 6))),
            user(
                missing, result("t2", None), result("t3", []), result("t4", [hit]), result("t5", [{"type": "hologram"}])
            ),
        ]
    )
    tools = request.messages[2:]
    assert [message["tool_call_id"] for message in tools] == ["t1", "t2", "t3", "t4", "t5"]
    assert [message["content"] for message in tools[:3]] == ["", "", ""]
    assert all(word in tools[3]["content"] for word in ("Doc", "https://e.example", "hit"))
    assert tools[4]["content"] == "[unsupported block: hologram]"
    assert "replaced: hologram" in request.notes


def test_b5_text_around_results_follows_them() -> None:
    """All results first, in arrival order, then one user message; the same bytes on every turn."""
    mixed = user(
        text("<note>hook ran</note>"), result("t2", "two"), text("mid"), result("t1", "one"), text("now summarise")
    )
    history = [user("go"), assistant(use("t1"), use("t2")), mixed]
    expected = [
        {"role": "tool", "tool_call_id": "t2", "content": "two"},
        {"role": "tool", "tool_call_id": "t1", "content": "one"},
        {"role": "user", "content": "<note>hook ran</note>\nmid\nnow summarise"},
    ]
    assert messages_request(messages=history).messages[2:] == expected
    assert messages_request(messages=[*history, assistant(text("ok")), user("more")]).messages[2:5] == expected


def test_b7_a_call_without_result_and_a_result_without_call() -> None:
    """The call stays (its prefix was captured), answered in a fixed form; the stray result becomes user text; both are counted."""
    request = messages_request(
        messages=[user("go"), assistant(use("t1", command="sleep 9")), user("stop, do X"), user(result("gone", "late"))]
    )
    assert request.messages[1]["tool_calls"][0]["id"] == "t1"
    assert request.messages[2:] == [
        {"role": "tool", "tool_call_id": "t1", "content": "[no result]"},
        {"role": "user", "content": "stop, do X"},
        {"role": "user", "content": "[result of an unknown tool call]\nlate"},
    ]
    assert {"repaired: tool call without a result", "repaired: tool result without a call"} <= set(request.notes)


@pytest.mark.parametrize(("second", "content"), [("a", "a"), ("b", "a\nb")])
def test_b8_two_results_for_one_call_are_one_message(second: str, content: str) -> None:
    """Equal ones are one; of different ones both texts stay, in order, and it is counted."""
    request = messages_request(
        messages=[user("go"), assistant(use("t1")), user(result("t1", "a"), result("t1", second))]
    )
    assert request.messages[2:] == [{"role": "tool", "tool_call_id": "t1", "content": content}]
    assert "repaired: several results for one tool call" in request.notes


def test_b10_two_calls_with_one_id() -> None:
    """Both calls and both results stay: results pair by occurrence, in either dialect."""
    history = [
        user("go"),
        assistant(use("edit:22", "edit", f="a"), use("edit:22", "edit", f="b")),
        user(result("edit:22", "first"), result("edit:22", "second")),
    ]
    calls = [
        {"id": "edit:22", "type": "function", "function": {"name": "edit", "arguments": f'{{"f":"{f}"}}'}} for f in "ab"
    ]
    chat = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "edit:22", "content": "first"},
        {"role": "tool", "tool_call_id": "edit:22", "content": "second"},
    ]
    for request in (messages_request(messages=history), chat_request(messages=chat)):
        made = request.messages[1]["tool_calls"]
        assert [call["function"]["arguments"] for call in made] == ['{"f":"a"}', '{"f":"b"}']
        assert len({call["id"] for call in made}) == 2
        assert [(m["tool_call_id"], m["content"]) for m in request.messages[2:]] == [
            (made[0]["id"], "first"),
            (made[1]["id"], "second"),
        ]
        assert "repaired: tool calls with one id" in request.notes


def test_b11_cache_marks_never_change_a_token(template: Renderer) -> None:
    """System as a string or as blocks, marks anywhere and moving: one prompt, with no JSON in its system text."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tool = {"name": "t", "input_schema": {"type": "object", "properties": {}}}
    variants = [
        {"system": [text("A", **mark), text("B")], "tools": [{**tool, **mark}], "messages": [user(text("hi", **mark))]},
        {"system": [text("A"), text("B", **mark)], "tools": [tool], "messages": [user("hi")]},
        {"system": "A\n\nB", "tools": [tool], "messages": [user(text("hi"))]},
    ]
    prompts = [ids_of(template, messages_request(**body)) for body in variants]
    assert prompts[0] == prompts[1] == prompts[2]
    assert template.decode(prompts[0]).startswith("<|im_start|>system\nA\n\nB\n\n# Tools")
    assert messages_request(**variants[0]).messages[0] == {"role": "system", "content": "A\n\nB"}


def test_b13_system_messages_in_mid_conversation_stay_in_place(renderer: Renderer) -> None:
    """Hoisting one would rewrite the head: the prompt of the first turns is still a prefix."""
    head = [user("q1"), {"role": "assistant", "content": "a1"}]
    system = {"role": "system", "content": [text("Helpers you may call: x, y")]}
    request = messages_request(system="S", messages=[*head, system, user("q2")])
    assert [m["role"] for m in request.messages] == ["system", "user", "assistant", "system", "user"]
    start = renderer.decode(ids_of(renderer, messages_request(system="S", messages=head[:1])))
    whole = renderer.decode(ids_of(renderer, request))
    assert whole.startswith(start.removesuffix("<|im_start|>assistant\n"))
    assert whole.index("a1") < whole.index("Helpers you may call: x, y") < whole.index("q2")


def test_b14_a_system_message_that_only_carries_controls(template: Renderer) -> None:
    """It makes no tokens and no 400; the control is named in the record."""
    controls = {"role": "system", "content": [], "output_config": {"effort": "high"}}
    with_it = messages_request(messages=[user("q"), controls, user("r")])
    without = messages_request(messages=[user("q"), user("r")])
    assert ids_of(template, with_it) == ids_of(template, without)
    assert "ignored message field: output_config" in with_it.notes


def test_b16_thinking_in_history() -> None:
    """Signatures are taken as they come, empty and foreign ones too; thinking goes to its channel; our own mark names the turn."""
    blocks = [
        {"type": "thinking", "thinking": "plan", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "thinking", "thinking": "more", "signature": ""},
        use("t1", "ls"),
    ]
    request = messages_request(messages=[user("go"), assistant(*blocks), user(result("t1", "x"))])
    turn = request.messages[1]
    assert (turn["content"], turn["reasoning_content"]) == ("", "plan\nmore")
    assert [call["id"] for call in turn["tool_calls"]] == ["t1"]
    assert request.turn_ids == ()
    for block in (
        {"type": "thinking", "thinking": "plan", "signature": turn_token(COMPLETION)},
        {"type": "redacted_thinking", "data": turn_token(COMPLETION)},
    ):
        marked = messages_request(system="S", messages=[user("go"), assistant(block), user("on")])
        assert marked.turn_ids == ("", "", COMPLETION, "")
        assert marked.messages[2]["role"] == "assistant"  # thinking alone is a turn, and never visible text
        assert marked.messages[2]["content"] == ""


def test_b17_fields_of_newer_releases_are_tolerated() -> None:
    """Accepted, and named once; only the thinking switch reaches the template."""
    body = {
        "thinking": {"type": "adaptive", "budget_tokens": 0},
        "output_config": {"effort": "xhigh"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "container": None,
        "brand_new_2027": {"x": 1},
    }
    request = messages_request(**body)
    assert request.template_kwargs == {"enable_thinking": True}
    assert [note for note in request.notes if note.startswith("ignored field")] == [
        "ignored field: brand_new_2027",
        "ignored field: context_management",
        "ignored field: metadata",
        "ignored field: output_config.effort",
        "ignored field: service_tier",
        "ignored field: thinking.budget_tokens",
    ]
    betas = parse_request("", {"anthropic-beta": "a-2027-01-01, b-2027-01-01"}, orjson.dumps({"messages": [user("x")]}))
    assert betas.notes == ("ignored beta: a-2027-01-01", "ignored beta: b-2027-01-01")


def test_b17_switching_thinking_off_is_another_prompt(template: Renderer) -> None:
    """Disabled is the template's own switch, so its tokens differ and a chain ends there."""
    on, off = (messages_request(thinking={"type": kind}) for kind in ("enabled", "disabled"))
    assert ids_of(template, on) != ids_of(template, off)


def test_b19_a_choice_of_a_tool_that_was_removed() -> None:
    """Without tools there is no choice either; both are named in the record."""
    request = messages_request(
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "tool", "name": "web_search"},
    )
    assert (request.tools, request.tool_choice) == ([], None)
    assert not request.is_parsing_tools
    assert request.notes == ("dropped hosted tool: web_search_20250305", "dropped: tool_choice without tools")


@pytest.mark.parametrize(
    ("sent", "choice", "is_parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any"}, "required", True),
        ({"type": "tool", "name": "Read"}, {"type": "function", "function": {"name": "Read"}}, True),
        ({"type": "none"}, "none", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
    ],
)
def test_b20_tool_choice_and_parallel_use(
    template: Renderer, sent: dict[str, Any], choice: Any, is_parallel: bool
) -> None:
    """Each form has its counterpart; none of them touches the prompt, and `none` reads no calls."""
    tools = [{"name": "Read", "input_schema": {"type": "object"}}]
    request = messages_request(tools=tools, tool_choice=sent)
    assert (request.tool_choice, request.parallel_tool_calls) == (choice, is_parallel)
    assert ids_of(template, request) == ids_of(template, messages_request(tools=tools))
    assert request.is_parsing_tools == (choice != "none")


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"Node": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}},
    "properties": {
        "n": {"$ref": "#/$defs/Node"},
        "u": {"type": ["string", "null"], "format": "uri"},
        "m": {"anyOf": [{"type": "integer"}, {"not": {"type": "string"}}]},
        "d": {"type": "object", "propertyNames": {"pattern": "^x"}, "additionalProperties": {"type": "number"}},
        "k": {"type": "string", "nullable": True, "const": "v"},
    },
    "required": ["n"],
    "additionalProperties": False,
}


def test_b22_schemas_are_data_for_the_prompt(renderer: Renderer) -> None:
    """Untouched, in the client's key order, recursion not followed; one without type or properties is accepted."""
    import json

    sent = copy.deepcopy(SCHEMA)
    request = messages_request(tools=[{"name": "q", "input_schema": sent}])
    assert json.dumps(request.tools[0]["function"]["parameters"]) == json.dumps(SCHEMA)  # the order too
    assert json.dumps(SCHEMA) in renderer.decode(ids_of(renderer, request))
    bare = messages_request(tools=[{"name": "q", "input_schema": {}}, {"name": "r"}])
    assert len(ids_of(renderer, bare)) > 0
    assert [t["function"]["parameters"] for t in bare.tools] == [{}, {"type": "object", "properties": {}}]


def test_b23_property_names_that_templates_use_themselves(renderer: Renderer) -> None:
    """`items`, `keys`, `values` and `get` are names like any other: in schemas and in the arguments of replayed calls."""
    names = ("items", "keys", "values", "get")
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    request = messages_request(
        tools=[{"name": "t", "input_schema": schema}],
        messages=[user("go"), assistant(use("c", "t", **dict.fromkeys(names, "v"))), user(result("c", "ok"))],
    )
    prompt = renderer.decode(ids_of(renderer, request))
    assert all(prompt.count(f'"{name}"') == 2 for name in names)


def test_b25_deferred_tools_stand_where_a_search_names_them(template: Renderer) -> None:
    """The head stays as it was; the reference becomes the tool's definition in its place; a call to it is no stranger."""
    schema = {"type": "object", "properties": {"z": {"type": "string"}}}
    search = {"name": "ToolSearch", "input_schema": {"type": "object"}}
    hidden = {"name": "mcp__a__b", "defer_loading": True, "input_schema": schema}
    turn = [
        user("x"),
        assistant(use("t1", "ToolSearch", q="b")),
        user(result("t1", [{"type": "tool_reference", "tool_name": "mcp__a__b"}])),
    ]
    request = messages_request(tools=[search, hidden], messages=turn)
    assert [tool["function"]["name"] for tool in request.tools] == ["ToolSearch"]
    assert request.deferred_tools == ("mcp__a__b",)
    assert '"name":"mcp__a__b"' in request.messages[-1]["content"]
    assert '"z"' in request.messages[-1]["content"]
    before = ids_of(template, messages_request(tools=[search, hidden], messages=turn[:1]))
    assert ids_of(template, request)[: len(before)] == before


def test_b25_deferred_tools_of_a_hosted_search_are_shown() -> None:
    """The vendor's own search never runs here, so nothing would ever name them."""
    request = messages_request(
        tools=[
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
            {"name": "b", "defer_loading": True, "input_schema": {"type": "object"}},
        ]
    )
    assert [tool["function"]["name"] for tool in request.tools] == ["b"]
    assert "deferred tools shown at once: their search is hosted" in request.notes


def test_b31_documents_and_blocks_of_hosted_tools() -> None:
    """Text is inlined with its title, binary is a placeholder with title and size, in order; vendor blocks in history are tolerated."""
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    plain = {"type": "text", "media_type": "text/plain", "data": "plain body"}
    request = messages_request(
        messages=[
            user(
                {"type": "document", "source": pdf, "title": "spec.pdf"},
                {"type": "document", "source": plain, "title": "notes"},
                {"type": "container_upload", "file_id": "f"},
                text("read"),
            ),
            assistant({"type": "mcp_tool_use", "id": "m", "name": "n", "input": {}}, text("ok")),
            user("on"),
        ]
    )
    assert request.messages[0]["content"] == (
        "[document: spec.pdf, application/pdf, 5 bytes]\nnotes\nplain body\n[unsupported block: container_upload]\nread"
    )
    assert request.messages[1]["content"] == "[unsupported block: mcp_tool_use]\nok"
    assert {"replaced: document", "replaced: container_upload", "replaced: mcp_tool_use"} <= set(request.notes)


def test_t56_an_anthropic_tool_loop() -> None:
    """The echoed signature names the turn, results stand in the order sent, the error is visible."""
    mark = turn_token(COMPLETION)
    answer = assistant(
        {"type": "thinking", "thinking": "t", "signature": mark}, text("x"), use("u1", "ls"), use("u2", "ls")
    )
    results = user(result("u2", "e", is_error=True), result("u1", [text("r")]))
    request = messages_request(messages=[user("go"), answer, results])
    assert request.turn_ids == ("", COMPLETION, "", "")
    assert request.messages[1]["reasoning_content"] == "t"
    assert [(m["tool_call_id"], m["content"]) for m in request.messages[2:]] == [("u2", "Error:\ne"), ("u1", "r")]


def test_t58_the_shape_of_a_well_known_client(template: Renderer) -> None:
    """System blocks, disabled thinking, effort, context management: the prompt holds what was said; the rest is named."""
    request = messages_request(
        system=[text("S", cache_control={"type": "ephemeral"})],
        thinking={"type": "disabled"},
        output_config={"effort": "low"},
        context_management={"edits": []},
        messages=[user(text("U"))],
    )
    prompt = template.decode(ids_of(template, request))
    assert "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>" in prompt
    assert {"ignored field: context_management", "ignored field: output_config.effort"} == set(request.notes)


@pytest.mark.parametrize("arguments", ['{"p":"/a","t":"abc', "", "null", '["x"]', '"x"', "{'p': 1}"])
def test_b110_broken_arguments_in_a_history_are_rendered(renderer: Renderer, arguments: str) -> None:
    """A call that nobody here sampled, with half its JSON: every template renders it, the same each time, and what follows it."""
    made = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    request = chat_request(
        tools=[{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}],
        messages=[
            {"role": "user", "content": "w"},
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "c1", "content": "error: bad args"},
            {"role": "user", "content": "again"},
        ],
    )
    prompt = renderer.decode(ids_of(renderer, request))
    assert ids_of(renderer, request) == ids_of(renderer, request)
    assert prompt.index("write") < prompt.index("error: bad args") < prompt.rindex("again")
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == (arguments or "{}")
