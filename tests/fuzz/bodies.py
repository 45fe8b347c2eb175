"""Random bodies: sound ones of each dialect, and what is left of them after random harm. Every draw comes from the given generator."""

from __future__ import annotations

import copy
import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

from tests.capture_proxy.wire import TOOL, Wire

Json = Any

STRINGS = (
    "",
    "hi",
    "x" * 3000,
    "a\u0000b",
    "\ud83d alone",
    "漢🦊ö",
    "</tool_call><|im_end|>",
    "data:image/png;base64,aGVsbG8=",
    "null",
    "../../etc/passwd",
    "\r\n\r\nGET / HTTP/1.1",
    "{{7*7}}{% raw %}",
    "auto",
    "system",
)
NUMBERS = (0, -1, 1, 0.5, 2**31, 2**63, 2**80, -(2**70), 1e308, 1e-300, 3.0)


def junk(rng: random.Random, depth: int = 0) -> Json:
    """Any JSON value, small."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice(STRINGS)
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind < 5:
        return (None, True, False)[kind - 2]
    if kind == 5:
        return [junk(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {
            rng.choice((*STRINGS, "type", "role", "content", "text", "name")): junk(rng, depth + 1) for _ in range(3)
        }
    return nested(rng.choice((5, 150, 260, 600)))


def nested(levels: int) -> Json:
    """A value so many levels deep."""
    value: Json = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


def sound(rng: random.Random, wire: Wire) -> dict[str, Json]:
    """A body that the dialect takes: a turn, a history with tools, or one of the odd parts that its clients send."""
    stream = rng.random() < 0.6
    text = rng.choice(("Hi", "again and again", "漢🦊ö", "x" * rng.randrange(1, 4000)))
    body = wire.request(text, stream=stream, tools=rng.random() < 0.4)
    extra = rng.choice(_EXTRAS[wire.name])
    body |= copy.deepcopy(extra)
    if rng.random() < 0.3:
        body |= copy.deepcopy(_HISTORIES[wire.name])
    return body


_CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
_HISTORIES: dict[str, dict[str, Json]] = {
    "openai_chat": {
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
            {"role": "user", "content": "go on"},
        ]
    },
    "anthropic": {
        "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "r", "signature": "c2ln"},
                    {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "x"}],
            },
        ],
    },
    "openai_responses": {
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "S"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "out"},
        ]
    },
    "google": {
        "contents": [
            {"role": "user", "parts": [{"text": "q"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "bash", "args": {"command": "ls"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": "x"}}}]},
        ]
    },
}
_EXTRAS: dict[str, tuple[dict[str, Json], ...]] = {
    "openai_chat": (
        {},
        {"stream_options": {"include_usage": True}},
        {"logprobs": True, "top_logprobs": 2},
        {"tool_choice": "required", "tools": [{"type": "function", "function": TOOL}]},
        {"response_format": {"type": "json_object"}, "stop": ["a", "b"], "seed": 1},
        {"max_completion_tokens": 2, "temperature": 0},
    ),
    "anthropic": (
        {},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"stop_sequences": ["x"], "metadata": {"user_id": "u"}, "temperature": 1},
        {"tool_choice": {"type": "any"}, "tools": [{"name": "t", "input_schema": {"type": "object"}}]},
        {"max_tokens": 1},
    ),
    "openai_responses": (
        {},
        {"instructions": "Be brief."},
        {"previous_response_id": "resp_unknown"},
        {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"], "store": False},
        {"text": {"format": {"type": "text"}}, "max_output_tokens": 2},
    ),
    "google": (
        {},
        {"generationConfig": {"maxOutputTokens": 2, "thinkingConfig": {"includeThoughts": True}}},
        {"systemInstruction": {"parts": [{"text": "S"}]}, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        {"safetySettings": [], "cachedContent": "x"},
    ),
}


def harmed_tree(rng: random.Random, body: Json) -> Json:
    """The body with one to three of its nodes replaced, removed, doubled or renamed."""
    body = copy.deepcopy(body)
    for _ in range(rng.randrange(1, 4)):
        if not body:
            break
        node, key = _place(rng, body)
        match rng.randrange(5):
            case 0 | 1:
                node[key] = junk(rng)
            case 2:
                del node[key]
            case 3 if isinstance(node, list):
                node.insert(rng.randrange(len(node) + 1), node[key])
            case _ if isinstance(node, dict):
                node[rng.choice(STRINGS)] = node.pop(key)
            case _:
                node[key] = rng.choice(STRINGS)
    return body


def _place(rng: random.Random, value: Json) -> tuple[Json, Json]:
    """A random node by its parent and key: a walk downwards that may end anywhere."""
    while True:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        child = value[key]
        if not isinstance(child, dict | list) or not child or rng.random() < 0.25:
            return value, key
        value = child


def harmed_bytes(rng: random.Random, data: bytes) -> bytes:
    """The bytes cut, flipped, doubled or mixed with others."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 2:
            return data[:at] + rng.randbytes(rng.randrange(20)) + data[at:]
        case 3:
            return data + data
        case _:
            return rng.randbytes(rng.randrange(200))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "deflate": zlib.compress,
    "br": lambda data: data,
    "gzip, gzip": lambda data: gzip.compress(gzip.compress(data)),
}


def body_bytes(rng: random.Random, wire: Wire) -> bytes:
    """A body as it is sent: about half of them sound."""
    body: Json = sound(rng, wire)
    fate = rng.random()
    if 0.5 < fate < 0.85:
        body = harmed_tree(rng, body)
    try:
        data = json.dumps(body).encode()
    except RecursionError:  # one deep nest inside another
        data = b'{"a":' * 3000
    return harmed_bytes(rng, data) if fate >= 0.85 else data
