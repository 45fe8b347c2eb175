"""Input items of a Responses request as a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from capture_proxy.dialects.openai_responses.ids import item_id
from capture_proxy.reply import ProxyError, tool_call_id
from capture_proxy.turn_ids import turn_token
from tests.capture_proxy.dialects.openai_responses.said import COMPLETION, parse

OTHER = "11111111-2222-4333-8444-555555555555"
PNG = "data:image/png;base64,iVBORw0KGgo="


def call(call_id: str, **more: Any) -> dict[str, Any]:
    """A function call of the tool `sh`."""
    return {"type": "function_call", "call_id": call_id, "name": "sh", "arguments": "{}", **more}


def output(call_id: str, sent: Any = "ok") -> dict[str, Any]:
    """A function call's result."""
    return {"type": "function_call_output", "call_id": call_id, "output": sent}


def said(text: str, **more: Any) -> dict[str, Any]:
    """A message of the assistant."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def thought(completion: str, text: str = "hm") -> dict[str, Any]:
    """A reasoning item of ours as a client echoes it."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "encrypted_content": turn_token(completion)}  # fmt: skip


def test_b53_items_of_one_turn_are_one_message() -> None:
    """Reasoning, text and parallel calls with reasoning in between: one assistant turn, then the results in their order."""
    request = parse(
        store=False,
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "think"}],
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
            {"type": "function_call", "call_id": "c1", "name": "sh", "arguments": '{"c":"ls"}'},
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": None},
            {"type": "function_call", "call_id": "c2", "name": "sh", "arguments": '{"c":"pwd"}'},
            {"type": "function_call_output", "call_id": "c2", "output": "/w"},
            {"type": "function_call_output", "call_id": "c1", "output": "a"},
        ],
    )
    assert request.messages == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "think",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": '{"c":"ls"}'}},
                {"id": "c2", "type": "function", "function": {"name": "sh", "arguments": '{"c":"pwd"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "/w"},
        {"role": "tool", "tool_call_id": "c1", "content": "a"},
    ]
    assert (request.notes, request.turn_ids) == ((), ())


def test_b53_results_between_calls_of_one_turn() -> None:
    """Some clients put each result behind its call: our ids tell that the calls were sampled together."""
    first, second = tool_call_id(COMPLETION, 0), tool_call_id(COMPLETION, 1)
    request = parse(input=[{"role": "user", "content": "go"}, call(first), output(first), call(second), output(second)])  # fmt: skip
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool", "tool"]
    assert [c["id"] for c in request.messages[1]["tool_calls"]] == [first, second]
    assert request.turn_ids == ("", COMPLETION, "", "")


def test_b53_two_calls_of_the_model_stay_two_turns() -> None:
    """Neighbouring items whose ids tell of two calls aren't glued together; foreign ones behind a result are a turn of their own."""
    request = parse(
        input=[
            {"role": "user", "content": "go"},
            said("a", id=item_id("msg", COMPLETION, 0)),
            said("b", id=item_id("msg", OTHER, 0)),
        ]
    )
    assert [m["content"] for m in request.messages] == ["go", "a", "b"]
    assert request.turn_ids == ("", COMPLETION, OTHER)
    foreign = parse(input=[{"role": "user", "content": "go"}, call("x"), output("x"), call("y"), output("y")])
    assert [m["role"] for m in foreign.messages] == ["user", "assistant", "tool", "assistant", "tool"]


def test_b55_items_with_nothing_to_render() -> None:
    """A message needs no type; empty reasoning and an empty answer add no turn."""
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "plain string"},
        {"type": "reasoning", "id": "rs_9", "summary": []},
        {"type": "message", "role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "input_text", "text": "next"}]},
    ]
    assert parse(input=items).messages == [
        {"role": "user", "content": "plain string"},
        {"role": "user", "content": "next"},
    ]


@pytest.mark.parametrize("reference", [{"type": "item_reference", "id": "rs_9"}, {"id": "rs_9"}])
def test_b55_a_reference_to_what_is_not_stored(reference: dict[str, Any]) -> None:
    """No item is stored, so a reference is an error that names it."""
    with pytest.raises(ProxyError, match="rs_9") as caught:
        parse(store=False, input=[{"role": "user", "content": "x"}, reference])
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "input.1", "item_not_found")


def test_a_reference_to_an_item_of_ours_waits_for_its_session() -> None:
    """References to items of one answer are that answer, once; its calls and their results are paired when it is there."""
    names = [item_id(prefix, COMPLETION, index) for index, prefix in enumerate(("rs", "msg", "fc"))]
    request = parse(
        input=[
            {"role": "user", "content": "x"},
            *({"type": "item_reference", "id": name} for name in names),
            output(tool_call_id(COMPLETION, 0)),
        ]
    )
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool"]
    assert request.recalls == ("", names[2], "")
    assert request.turn_ids == ("", COMPLETION, "")
    assert request.notes == ()


def test_roles_stay_in_place() -> None:
    """System and developer messages are system messages where they stand; instructions come first."""
    request = parse(
        instructions="be brief",
        input=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "u"},
            {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}]},
            {"role": "developer", "content": ""},
        ],
    )
    assert [(m["role"], m["content"]) for m in request.messages] == [
        ("system", "be brief"),
        ("system", "d"),
        ("user", "u"),
        ("system", "s"),
    ]
    assert request.has_instructions
    with pytest.raises(ProxyError, match="'critic' is not one of"):
        parse(input=[{"role": "critic", "content": "x"}])


def test_b62_an_echoed_blob_is_its_turn() -> None:
    """Only the blob comes back: it marks the same turn as the items around it."""
    request = parse(
        store=False,
        include=["reasoning.encrypted_content"],
        input=[
            {"role": "user", "content": "go"},
            {"type": "reasoning", "summary": [], "encrypted_content": turn_token(COMPLETION)},
            said("done"),
            {"role": "user", "content": "more"},
        ],
    )
    assert request.messages[1] == {"role": "assistant", "content": "done"}
    assert request.turn_ids == ("", COMPLETION, "")


def test_b62_a_foreign_blob_is_skipped_and_noted() -> None:
    """What another server sealed can't be read here."""
    request = parse(input=[{"role": "user", "content": "go"}, {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, said("a")])  # fmt: skip
    assert request.messages[1] == {"role": "assistant", "content": "a"}
    assert request.notes == ("dropped: encrypted reasoning of another server",)


def test_thinking_without_an_answer() -> None:
    """A stream that broke leaves its thinking with the client, which asks again: it isn't a turn. Thinking that was answered to is."""
    user = {"role": "user", "content": "go"}
    again = parse(input=[user, thought(COMPLETION)])
    assert again.messages == [user]
    assert again.notes == ("dropped: assistant turn without an answer",)
    went_on = parse(input=[user, thought(COMPLETION), thought(OTHER, "ho"), said("a", id=item_id("msg", OTHER, 1))])
    assert went_on.messages[1:] == [{"role": "assistant", "content": "a", "reasoning_content": "ho"}]
    cut = parse(input=[user, thought(COMPLETION), user])
    assert [m["role"] for m in cut.messages] == ["user", "assistant", "user"]
    assert cut.turn_ids == ("", COMPLETION, "")


def test_b56_freeform_calls_in_history() -> None:
    """Raw text goes back into the one parameter; the result is a tool result."""
    patch = '*** Begin Patch\n+h\u00e9 "q" \\n\n'
    request = parse(
        input=[
            {"role": "user", "content": "edit"},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": patch},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
        ],
        tools=[{"type": "custom", "name": "apply_patch"}],
    )
    function = request.messages[1]["tool_calls"][0]["function"]
    assert function == {
        "name": "apply_patch",
        "arguments": '{"input":"*** Begin Patch\\n+h\u00e9 \\"q\\" \\\\n\\n"}',
    }
    assert request.messages[2] == {"role": "tool", "tool_call_id": "c1", "content": "Done"}


def test_b58_namespaces_in_history() -> None:
    """A call in a namespace stands in history under the very name that the model sees."""
    tools = [
        {"type": "namespace", "name": "mcp__git", "description": "git", "tools": [{"type": "function", "name": "log"}]},
        {"type": "function", "name": "log"},
    ]
    items = [{"role": "user", "content": "x"}, call("a", name="log", namespace="mcp__git"), call("b", name="log")]
    request = parse(input=items, tools=tools)
    names = [c["function"]["name"] for c in request.messages[1]["tool_calls"]]
    assert names == ["mcp__git__log", "log"]
    assert set(names) <= {tool["function"]["name"] for tool in request.tools}


def test_b59_built_in_items_in_history() -> None:
    """What clients ran stays as call and result; what the vendor ran is dropped and named; nothing fails."""
    action = {"type": "exec", "command": ["ls"], "env": {}}
    request = parse(
        input=[
            {"role": "user", "content": "x"},
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            },
            {"type": "local_shell_call", "id": "l1", "call_id": "c1", "status": "completed", "action": action},
            {"type": "local_shell_call_output", "id": "c1", "output": '{"output":"a"}'},
            {"type": "shell_call", "call_id": "c2", "action": {"commands": ["pwd"]}},
            {"type": "shell_call_output", "call_id": "c2", "output": [{"stdout": "/w", "stderr": ""}]},
            {"type": "brand_new_2027", "id": "n1", "payload": 1},
        ]
    )
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert request.messages[1]["tool_calls"][0]["function"] == {
        "name": "local_shell",
        "arguments": '{"type":"exec","command":["ls"],"env":{}}',
    }
    assert [m["content"] for m in request.messages if m["role"] == "tool"] == [
        '{"output":"a"}',
        '[{"stdout":"/w","stderr":""}]',
    ]
    assert request.notes == ("dropped item: brand_new_2027", "dropped item: web_search_call")


def test_b67_compaction_items() -> None:
    """A summary that another server sealed is skipped and named; a request to compact is refused at once, since no answer would do."""
    for kind in ("compaction", "context_compaction"):
        request = parse(input=[{"type": kind, "encrypted_content": "x"}, {"role": "user", "content": "go"}])
        assert request.messages == [{"role": "user", "content": "go"}]
        assert request.notes == (f"dropped: {kind} of another server",)
    with pytest.raises(ProxyError, match="summarise in the client") as caught:
        parse(input=[{"role": "user", "content": "go"}, {"type": "compaction_trigger"}])
    assert caught.value.status == 400


def test_b68_tool_output_as_parts() -> None:
    """Text and images of a result arrive in order; empty and null outputs are empty text."""
    parts = [{"type": "input_text", "text": "img"}, {"type": "input_image", "image_url": PNG}]
    request = parse(
        input=[
            {"role": "user", "content": "x"},
            *(call(c) for c in "abcd"),
            output("a", parts),
            output("b", ""),
            output("c", None),
            output("d", [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]),
        ]
    )
    assert [m["content"] for m in request.messages if m["role"] == "tool"] == [
        [{"type": "text", "text": "img"}, {"type": "image_url", "image_url": {"url": PNG}}],
        "",
        "",
        "one\ntwo",
    ]


def test_content_parts() -> None:
    """Text, images and refusals are read; files, audio and what is unknown become a fixed text, each noted."""
    request = parse(
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": PNG, "detail": "high"},
                    {"type": "input_image", "file_id": "file-1"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
                    {"type": "input_audio", "input_audio": {"format": "wav", "data": "AAAA"}},
                    {"type": "input_smell", "x": 1},
                    {"type": "refusal", "refusal": "no"},
                    "bare",
                ],
            }
        ]
    )
    image, *texts = request.messages[0]["content"]
    assert image == {"type": "image_url", "image_url": {"url": PNG}}
    assert [part["text"] for part in texts] == [
        "[image: file-1]",
        "[file: a.pdf, 3 bytes]",
        "[audio: wav, 3 bytes]",
        "[unsupported block: input_smell]",
        "no",
        "bare",
    ]
    assert request.notes == (
        "replaced: image by file id",
        "replaced: input_audio",
        "replaced: input_file",
        "replaced: input_smell",
    )


def test_unknown_items_that_say_something_are_carried() -> None:
    """An item of an unknown type with role and content is read as the message that it is."""
    request = parse(input=[{"type": "memo_2027", "role": "user", "content": "hi"}])
    assert request.messages == [{"role": "user", "content": "hi"}]
    assert request.notes == ("read as a message: memo_2027",)


@pytest.mark.parametrize(
    ("items", "param"),
    [
        (["text"], "input.0"),
        ([{"role": "user", "content": 7}], "input.0.content"),
        ([], "input"),
        (7, "input"),
    ],
)
def test_wrong_input_is_named(items: Any, param: str) -> None:
    """The error says which item is wrong."""
    with pytest.raises(ProxyError) as caught:
        parse(input=items)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_calls_and_results_are_paired() -> None:
    """A call without a result and a result without a call are repaired in the fixed form."""
    request = parse(input=[{"role": "user", "content": "x"}, call("a"), output("b", "late"), said("on")])
    assert [m["content"] for m in request.messages] == ["x", "", "[no result]", "[result of an unknown tool call]\nlate", "on"]  # fmt: skip
    assert request.notes == ("repaired: tool call without a result", "repaired: tool result without a call")
