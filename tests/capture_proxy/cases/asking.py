"""Requests of both dialects as their parsers read them, and calls through a running proxy."""

from __future__ import annotations

import json
from typing import Any

import orjson

from capture_proxy.dialects import DIALECTS
from capture_proxy.reply import ChatRequest
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.wire import Said, Wire

KEYS = {"role", "content", "tool_call_id", "tool_calls", "name", "reasoning_content"}
"""What a strict upstream accepts in a message."""


def messages_request(**body: Any) -> ChatRequest:
    """A Messages request with defaults for what a case leaves out."""
    return _read("anthropic", "/v1/messages?beta=true", {"model": "m", "max_tokens": 64, **body})


def chat_request(**body: Any) -> ChatRequest:
    """A Chat Completions request with defaults for what a case leaves out."""
    return _read("openai_chat", "/v1/chat/completions", {"model": "m", **body})


def _read(dialect: str, path: str, body: dict[str, Any]) -> ChatRequest:
    body.setdefault("messages", [{"role": "user", "content": "hi"}])
    request = DIALECTS[dialect].parse_request(path, {}, orjson.dumps(body))
    for message in request.messages:
        assert set(message) <= KEYS
    return request


async def call(stack: Stack, wire: Wire, *, stream: bool, **changes: Any) -> tuple[int, Said | None, Any]:
    """(status, what a harness reads of a 200, the body: JSON or the stream's text)."""
    body = wire.request(stream=stream, **changes)
    async with stack.http.post(
        stack.url(getattr(wire, "stream_path", wire.path) if stream else wire.path), json=body
    ) as response:
        text = await response.text()
    if response.status != 200:
        return response.status, None, json.loads(text)
    if stream:
        return 200, wire.read_stream(text), text
    value = json.loads(text)
    return 200, wire.read_whole(value), value


async def raw(stack: Stack, path: str, body: Any) -> tuple[int, Any]:
    """(status, JSON body) of a request as it is."""
    async with stack.http.post(stack.url(path), json=body) as response:
        return response.status, json.loads(await response.text())
