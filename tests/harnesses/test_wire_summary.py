"""Summaries of what a harness sends: names and types, never values."""

from __future__ import annotations

import json

import harnesses
from harnesses.wire_summary import Seen, differences, events_of, recorded, summarise

CHAT = {
    "model": "the-model",
    "messages": [
        {"role": "system", "content": "a secret prompt"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f"}}],
        },
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "bash", "description": "d", "parameters": {"properties": {"command": {}}}},
        }
    ],
    "stop": [],
    "metadata": {},
    "temperature": 1,
}


def seen(body: object, answer: bytes = b"{}", path: str = "/s/sec/v1/chat?beta=true") -> Seen:
    return Seen(
        method="POST", path=path, headers=frozenset({"accept", "x-key"}), body=json.dumps(body).encode(), answer=answer
    )


def test_a_summary_has_names_and_types() -> None:
    """Paths tell list items apart by type or role; the secret, the model and every text are gone."""
    made = summarise([seen(CHAT)], secret="sec", model="the-model")
    assert made["endpoints"] == ["POST /v1/chat?beta=true"]
    assert made["headers"] == ["accept", "x-key"]
    assert made["body"] == {
        "messages[assistant].content": "null",
        "messages[assistant].role": "string",
        "messages[assistant].tool_calls[function].function.name": "string",
        "messages[assistant].tool_calls[function].id": "string",
        "messages[assistant].tool_calls[function].type": "string",
        "messages[system].content": "string",
        "messages[system].role": "string",
        "messages[user].content[text].text": "string",
        "messages[user].content[text].type": "string",
        "messages[user].role": "string",
        "metadata": "object",
        "model": "string",
        "stop": "list",
        "temperature": "number",
        "tools[function].function.description": "string",
        "tools[function].function.name": "string",
        "tools[function].function.parameters": "schema",
        "tools[function].type": "string",
    }
    assert made["tools"] == {"bash": "command"}
    assert made["last_conversation"] == ["system", "user(text)", "assistant(tool_call)"]
    assert "secret prompt" not in json.dumps(made)
    assert "hello" not in json.dumps(made)


def test_types_of_several_calls_are_joined() -> None:
    """A field that is now this and now that is both."""
    made = summarise([seen({"a": 1}), seen({"a": None}), seen({"b": "x"})], secret="s", model="m")
    assert made["body"] == {"a": "null|number", "b": "string"}
    assert made["calls"] == 3


def test_the_model_in_the_path() -> None:
    """Google's paths name the model."""
    item = seen(
        {"contents": [{"role": "user", "parts": [{"text": "x"}, {"functionCall": {"name": "f"}}]}]},
        path="/v1beta/models/m1:go",
    )
    made = summarise([item], secret="s", model="m1")
    assert made["endpoints"] == ["POST /v1beta/models/MODEL:go"]
    assert made["last_conversation"] == ["user(text, functionCall)"]


def test_events_of_each_dialect() -> None:
    """Named events by their type, chunks by what they carry, repeats once, whole answers by their fields."""
    messages = b'event: ping\ndata: {"type": "ping"}\n\ndata: {"type": "delta"}\n\ndata: {"type": "delta"}\n\n'
    assert events_of(messages) == ["ping", "delta"]
    chunk = b'data: {"choices": [{"delta": {"content": "x", "role": null}, "finish_reason": null}]}\n\ndata: [DONE]\n\n'
    assert events_of(chunk) == ["choices: content", "[DONE]"]
    google = b'data: {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}]}\n\n'
    assert events_of(google) == ["candidates: finishReason, text"]
    assert events_of(b'{"id": 1, "choices": []}') == ["whole: choices, id"]
    assert events_of(b"") == []


def test_differences_are_lines() -> None:
    """New, gone and other, each with its place."""
    old = {"body": {"a": "string", "b": "number"}, "tools": {"x": "y"}, "headers": ["h"]}
    new = {"body": {"a": "null|string", "c": "number"}, "tools": {"x": "y"}, "headers": ["h", "i"]}
    assert differences(old, new) == [
        '~ body.a: "string" -> "null|string"',
        '- body.b: "number"',
        '+ body.c: "number"',
        '~ headers: ["h"] -> ["h","i"]',
    ]
    assert differences(old, old) == []


def test_every_pin_has_its_summary() -> None:
    """A harness that is installed has a file for its pinned version, with all its wires; no prompt can be in it."""
    for adapter in harnesses.list_harnesses():
        if adapter.install is None:
            assert recorded(adapter.name) is None
            continue
        tree = recorded(adapter.name)
        assert tree is not None, f"polynya harness record {adapter.name} --write harnesses/wires"
        assert tree["version"] == adapter.version
        assert set(tree["wires"]) == set(adapter.dialects)
        for summary in tree["wires"].values():
            assert set(summary["body"].values()) <= _TYPES
            assert max(len(text) for text in _texts(summary)) < 400


_ONE = {"string", "number", "boolean", "null", "list", "object", "schema"}
_TYPES = _ONE | {f"{a}|{b}" for a in _ONE for b in _ONE}


def _texts(tree: object) -> list[str]:
    if isinstance(tree, str):
        return [tree]
    if isinstance(tree, dict):
        return [text for key, item in tree.items() for text in (key, *_texts(item))]
    return [text for item in tree for text in _texts(item)] if isinstance(tree, list) else []
