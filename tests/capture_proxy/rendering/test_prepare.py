"""Messages as templates want them."""

from __future__ import annotations

from typing import Any

from capture_proxy.rendering.prepare import for_template, without_system_turns


def _call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_arguments_become_objects_where_they_are_ones() -> None:
    """Half a JSON text, or another type, stays the string it is; the input is not changed."""
    message = {"role": "assistant", "content": "", "tool_calls": [_call('{"b":1,"a":2}'), _call('{"b":'), _call("[1]")]}
    prepared = for_template([message])[0]
    assert [call["function"]["arguments"] for call in prepared["tool_calls"]] == [{"b": 1, "a": 2}, '{"b":', "[1]"]
    assert message["tool_calls"][0] == _call('{"b":1,"a":2}')


def test_images_become_a_fixed_text() -> None:
    """Media type and byte size, the same on every turn."""
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://e.example/a.png"}},
    ]
    prepared = for_template([{"role": "user", "content": parts}])[0]
    assert prepared["content"] == "see\n[image: image/png, 8 bytes]\n[image: https://e.example/a.png]"


def test_system_turns_as_user_text() -> None:
    """In place, wrapped, neighbours merged; the head stays."""
    messages = [
        {"role": role, "content": text}
        for role, text in [("system", "S"), ("user", "q"), ("system", "x"), ("assistant", "a"), ("system", "y")]
    ]
    plain = without_system_turns(messages)
    assert [message["role"] for message in plain] == ["system", "user", "assistant", "user"]
    assert plain[1]["content"] == "q\n<system>\nx\n</system>"
