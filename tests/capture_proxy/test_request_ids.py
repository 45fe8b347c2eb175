"""Answers have an id where their vendor's have one."""

from __future__ import annotations

import pytest

from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.wire import WIRES, Wire

HEADERS = {"openai_chat": "x-request-id", "openai_responses": "x-request-id", "anthropic": "request-id"}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_names_its_call(stack: Stack, wire: Wire, stream: bool, status: int) -> None:
    """Qwen Code goes on after a broken stream only if the answer had an id; support asks for it: it is the call's own."""
    stack.engine.status = status
    path = wire.stream_path if stream else wire.path
    async with stack.http.post(stack.url(path), json=wire.request(stream=stream)) as response:
        assert response.status == status
        await response.read()
    await stack.until(lambda: bool(stack.calls))
    sent = {name: response.headers[name] for name in ("x-request-id", "request-id") if name in response.headers}
    expected = f"req_{stack.calls[0].completion_id.replace('-', '')}"
    assert sent == ({HEADERS[wire.name]: expected} if wire.name in HEADERS else {})
