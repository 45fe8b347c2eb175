"""Conversations in OpenAI's form: what is kept, what is put right, what is refused and how that is called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.trainer_sink.export.talks import READ, SYSTEM, USER, call, calls, result, says
from trainer_sink.export.shape import Shape, UnusableError, cleaned, conversation

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def made(*messages: Any, tools: Any = (), **shape: Any) -> Any:
    return conversation(list(messages), list(tools), Shape(**shape))


def test_an_agents_conversation_stays_word_for_word() -> None:
    """Calls, results, reasoning and tools are all there; only what one API knows goes."""
    said = [SYSTEM, USER, calls(call("read", {"a": 1}), refusal=None), result("x"), says("y", reasoning_content="z")]
    got = made(*said, tools=[READ])
    del said[2]["refusal"]
    assert got.messages == said
    assert (got.tools, got.turns, got.repaired) == ([READ], 2, 0)


def test_content_is_always_one_string() -> None:
    """Null beside tool calls, a missing content and text parts: templates add strings, and columns have one type."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    got = made({"role": "user", "content": parts}, calls(call("read", {}), content=None), result(""), says("ok"))
    assert [m["content"] for m in got.messages] == ["a\nb", "", "", "ok"]


def test_developer_is_system() -> None:
    """Templates know no developer."""
    assert made({"role": "developer", "content": "d"}, USER, says("ok")).messages[0] == {
        "role": "system",
        "content": "d",
    }


@pytest.mark.parametrize(
    ("arguments", "text", "value"),
    [
        ('{"a": 1,  "b":"ü"}', '{"a": 1,  "b":"ü"}', {"a": 1, "b": "ü"}),
        ("", "{}", {}),
        ({"a": [1]}, '{"a":[1]}', {"a": [1]}),
    ],
)
def test_arguments_as_text_or_as_objects(arguments: Any, text: str, value: Any) -> None:
    """Text stays as it was sampled, blanks and all; objects are what it spells."""
    turn = calls({"id": "1", "function": {"name": "f", "arguments": arguments}})
    for shape, expected in (("string", text), ("object", value)):
        (got,) = made(USER, turn, arguments=shape).messages[1]["tool_calls"]
        assert got == {"id": "1", "type": "function", "function": {"name": "f", "arguments": expected}}


def test_reasoning_can_be_dropped() -> None:
    """By the flag; under either of its names otherwise kept under one."""
    assert made(USER, says("a", reasoning="r")).messages[1]["reasoning_content"] == "r"
    assert "reasoning_content" not in made(USER, says("a", reasoning_content="r"), keep_reasoning=False).messages[1]


def test_images() -> None:
    """A text in their place, or kept: then every content is a list of parts."""
    said = [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]}, says("")]
    said[2]["tool_calls"] = [call("read", {})]
    assert made(*said, images="placeholder").messages[1]["content"] == "look\n[image: image/png]"
    kept = [m["content"] for m in made(*said, images="keep").messages]
    assert kept == [[{"type": "text", "text": SYSTEM["content"]}], [{"type": "text", "text": "look"}, IMAGE], []]


@pytest.mark.parametrize(
    ("reason", "messages"),
    [
        ("no_messages", []),
        ("no_messages", None),
        ("no_reply", [USER]),
        ("empty_reply", [USER, says("")]),
        ("empty_reply", [USER, says(None)]),  # type: ignore[arg-type]
        ("malformed_message", [USER, "text", says("a")]),
        ("malformed_message", [{"role": "function", "content": "a"}, says("a")]),
        ("malformed_message", [{"role": "user", "content": 1}, says("a")]),
        ("malformed_message", [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]),
        ("bad_arguments", [USER, calls(call("read", '{"a": '))]),
        ("bad_arguments", [USER, calls(call("read", "[1]"))]),
        ("images", [{"role": "user", "content": [IMAGE]}, says("a")]),
        ("unsupported_content", [{"role": "user", "content": [{"type": "audio"}]}, says("a")]),
    ],
)
def test_what_cannot_be_used_has_a_name(reason: str, messages: Any) -> None:
    """Nothing is guessed."""
    with pytest.raises(UnusableError) as caught:
        conversation(messages, [], Shape())
    assert caught.value.reason == reason


def test_what_readers_refuse_is_put_right_and_counted() -> None:
    """Lone surrogates and whole numbers beyond 64 bits; a real pair is a character."""
    wide = {"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**64, "minimum": -(2**63)}}}
    got = made({"role": "user", "content": "a\ud800b \U0001f600"}, says("c"), tools=[wide])
    assert got.messages[0]["content"] == "a\ufffdb \U0001f600"
    assert got.tools[0]["function"]["parameters"] == {"maximum": float(2**64), "minimum": -(2**63)}
    assert got.repaired == 2
    json.dumps(got.messages, ensure_ascii=False).encode()
    assert cleaned({"\ud800": [True, None, 10**400, 1.5]}) == {"\ufffd": [True, None, str(10**400), 1.5]}


def test_a_bare_tool_is_put_into_openais_form() -> None:
    """So that templates find `tool.function`."""
    got = made(USER, says("a"), tools=[{"name": "ls", "description": "d", "parameters": {}}])
    assert got.tools == [{"type": "function", "function": {"name": "ls", "description": "d", "parameters": {}}}]
