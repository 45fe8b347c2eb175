"""The whole proxy in one process: real mitmproxy, real tap, a fake engine, the memory bus."""

from __future__ import annotations

import json
from typing import Any

from schemas import arrays
from schemas.records import CompletionState
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import END_ID, CharRenderer


def chat(**changes: Any) -> dict[str, Any]:
    """A Chat Completions request."""
    return {"model": "policy", "messages": [{"role": "user", "content": "Hi"}], **changes}


def sse(body: str) -> list[Any]:
    """The data of a stream's events."""
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]


async def test_a_streamed_chat_call_is_answered_and_recorded(stack: Stack) -> None:
    """Text streams to the client, and the record on the bus holds the engine's own ids and logprobs."""
    async with stack.http.post(stack.url("/v1/chat/completions"), json=chat(stream=True)) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        body = await response.text()
    assert body.rstrip().endswith("data: [DONE]")
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in sse(body) if e["choices"])
    assert text == "Hello there."
    await stack.until(lambda: bool(stack.deliveries))
    [record] = stack.calls
    assert record.state is CompletionState.FINISHED
    assert record.trainable
    assert list(arrays.unpack_ids(record.output_ids)) == [*CharRenderer().encode("Hello there."), END_ID]
    assert list(arrays.unpack_ids(record.suffix_ids)) == stack.engine.requests[0]["input_ids"]
    assert record.call_seq == 1
    [delivery] = stack.deliveries
    assert delivery.delivered
    assert delivery.completion_id == record.completion_id
