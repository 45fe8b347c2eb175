"""Bodies of very many small parts, in every dialect: read in time that grows as their size does."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from capture_proxy.dialects import DIALECTS

COUNT = 10_000
LIMIT_S = 5.0
"""Processor time. What grew with the square of the count took a minute and more."""

PATHS = {
    "openai_chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "openai_responses": "/v1/responses",
    "google": "/v1beta/models/m:generateContent",
}


def calls_and_results(dialect: str) -> dict[str, Any]:
    """One answer with very many calls, and all their results."""
    names = [f"c{i}" for i in range(COUNT)]
    if dialect == "google":
        made = [{"functionCall": {"id": n, "name": "f", "args": {}}} for n in names]
        got = [{"functionResponse": {"id": n, "name": "f", "response": {"output": n}}} for n in names]
        return {"contents": [{"role": "model", "parts": made}, {"role": "user", "parts": got}]}
    if dialect == "anthropic":
        used = [{"type": "tool_use", "id": n, "name": "f", "input": {}} for n in names]
        told = [{"type": "tool_result", "tool_use_id": n, "content": n} for n in names]
        messages = [{"role": "assistant", "content": used}, {"role": "user", "content": told}]
        return {"model": "m", "max_tokens": 9, "messages": messages}
    if dialect == "openai_responses":
        items = [{"type": "function_call", "call_id": n, "name": "f", "arguments": "{}"} for n in names]
        return {
            "model": "m",
            "input": items + [{"type": "function_call_output", "call_id": n, "output": n} for n in names],
        }
    calls = [{"id": n, "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in names]
    results = [{"role": "tool", "tool_call_id": n, "content": n} for n in names]
    return {"model": "m", "messages": [{"role": "assistant", "tool_calls": calls}, *results]}


@pytest.mark.parametrize("dialect", sorted(PATHS))
def test_many_calls_and_results(dialect: str) -> None:
    """Each result stands with its own call."""
    body = json.dumps(calls_and_results(dialect)).encode()
    started_s = time.process_time()
    messages = DIALECTS[dialect].parse_request(PATHS[dialect], {}, body).messages
    assert time.process_time() - started_s < LIMIT_S
    results = [message for message in messages if message["role"] == "tool"]
    assert [message["content"] for message in results] == [message["tool_call_id"] for message in results]
    assert len(results) == COUNT


@pytest.mark.parametrize("dialect", ["google", "openai_responses"])
def test_one_answer_in_many_pieces(dialect: str) -> None:
    """What a client echoes piece by piece is one message."""
    text = "ab" * 50
    if dialect == "google":
        value: dict[str, Any] = {"contents": [{"role": "model", "parts": [{"text": text}]}] * (3 * COUNT)}
    else:
        value = {"model": "m", "input": [{"type": "message", "role": "assistant", "content": text}] * (3 * COUNT)}
    body = json.dumps(value).encode()
    started_s = time.process_time()
    messages = DIALECTS[dialect].parse_request(PATHS[dialect], {}, body).messages
    assert time.process_time() - started_s < LIMIT_S
    assert len(messages) == 1
    assert messages[0]["content"].replace("\n", "") == text * (3 * COUNT)
