"""The recording endpoint, with plain HTTP."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from compose.trial.record import as_file
from compose.trial.recorder import recording
from harnesses import get

SHELL = {
    "name": "bash",
    "description": "",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai_chat": (
        "/s/x/v1/chat/completions",
        {
            "model": "m",
            "messages": [{"role": "user", "content": "go"}],
            "tools": [{"type": "function", "function": SHELL}],
        },
    ),
    "anthropic": (
        "/s/x/v1/messages",
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "go"}],
            "tools": [{"name": "bash", "input_schema": SHELL["parameters"]}],
        },
    ),
    "openai_responses": ("/s/x/v1/responses", {"model": "m", "input": "go", "tools": [{"type": "function", **SHELL}]}),
    "google": (
        "/s/x/v1beta/models/m:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "go"}]}], "tools": [{"functionDeclarations": [SHELL]}]},
    ),
}


async def post(address: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.post(address + path, json=body) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("dialect", BODIES)
async def test_it_answers_in_each_dialect(dialect: str) -> None:
    """The script's first step comes back in the dialect's own shape, and the request is noted as it came."""
    path, body = BODIES[dialect]
    async with recording() as (address, recorder):
        status, text = await post(address, path, body)
    assert status == 200
    assert text.count("echo CWD=$PWD") == 1
    (exchange,) = recorder.exchanges
    assert (exchange.method, exchange.path, json.loads(exchange.body)) == ("POST", path, body)
    assert exchange.request is not None
    assert exchange.request.dialect == dialect


async def test_it_refuses_when_told_and_what_it_does_not_know() -> None:
    """A given status goes to every model call; an unknown endpoint is a 404; both are noted."""
    path, body = BODIES["anthropic"]
    async with recording(status=400) as (address, recorder):
        assert (await post(address, path, body))[0] == 400
        assert (await post(address, "/s/x/other", {}))[0] == 404
    assert [exchange.status for exchange in recorder.exchanges] == [400, 404]


def test_the_file_says_which_version_it_is_of() -> None:
    """A summary belongs to a pin."""
    tree = json.loads(as_file(get("pi"), {"b": {"calls": 1}, "a": {}}))
    assert (tree["harness"], tree["version"], list(tree["wires"])) == ("pi", "1.6.0", ["a", "b"])
