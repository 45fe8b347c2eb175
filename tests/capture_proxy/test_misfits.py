"""What no record can hold, or no engine should say: every call still gets its one record, the client an answer, the seal its end."""

from __future__ import annotations

import asyncio
import copy
import errno
import gzip
import json
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Any

import pytest

from capture_proxy import records
from schemas.records import CompletionRecord, CompletionState
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.test_service import both, streamed_or_not
from tests.capture_proxy.wire import Wire

MakeStack = Callable[..., Awaitable[Stack]]


async def say(stack: Stack, wire: Wire, body: Any, *, stream: bool = False) -> tuple[int, str]:
    """Sends a body and reads the whole answer."""
    path = wire.stream_path if stream else wire.path
    async with stack.http.post(stack.url(path), data=json.dumps(body).encode()) as response:
        return response.status, await response.text()


async def assert_seals(stack: Stack) -> None:
    """The lease seals, with one record and one delivery fact for each of its numbers."""
    _, answer = await stack.seal()
    await stack.until(lambda: bool(stack.seals))
    numbers = list(range(1, answer["last_seq"] + 1))
    assert [call.call_seq for call in stack.calls] == numbers
    assert sorted(fact.call_seq for fact in stack.deliveries) == numbers


def with_schema(wire: Wire, schema: Any, **changes: Any) -> dict[str, Any]:
    """A request whose tool has one more property."""
    body = copy.deepcopy(wire.request(tools=True, **changes))
    [tool] = body["tools"]
    [tool] = tool.get("functionDeclarations", [tool])
    parameters = tool.get("function", tool).get("parameters") or tool["input_schema"]
    parameters["properties"]["more"] = schema
    return body


@both
@streamed_or_not
async def test_a_lone_surrogate_in_a_tools_name_is_text(stack: Stack, wire: Wire, stream: bool) -> None:
    """No such name can travel: the call is delivered as the text that was sampled, and the reply ends as it should."""
    sampled = '<tool_call>\n{"name": "ba\\ud800sh", "arguments": {}}\n</tool_call>'
    stack.engine.script = lambda _prompt, _request: sampled
    status, body = await say(stack, wire, wire.request(stream=stream, tools=True), stream=stream)
    said = wire.read_stream(body) if stream else wire.read_whole(json.loads(body))
    assert (status, said.text, said.tools, said.is_over) == (200, sampled, [], True)
    await assert_seals(stack)
    assert stack.calls[0].parse_status == "tool_parse_error"


@both
async def test_a_body_nested_too_deeply_is_a_400(stack: Stack, wire: Wire) -> None:
    """It could be read, but not be written to a record."""
    schema: Any = {"type": "string"}
    for _ in range(400):
        schema = {"items": schema}
    status, body = await say(stack, wire, with_schema(wire, schema))
    assert status == 400
    assert "nested" in wire.error_of(json.loads(body))[1]
    await assert_seals(stack)


@both
async def test_an_integer_beyond_64_bits_in_a_schema_is_recorded(stack: Stack, wire: Wire) -> None:
    """Next to a lone surrogate it is read exactly, and the record holds it exactly."""
    status, _ = await say(stack, wire, with_schema(wire, {"maximum": 2**80}, text="\ud800"))
    assert status == 200
    await assert_seals(stack)
    [call] = stack.calls
    assert call.state is CompletionState.FINISHED
    assert str(2**80) in json.dumps(call.tools)


@both
@pytest.mark.parametrize("value", [10**400, float("inf")], ids=["long", "infinite"])
async def test_a_number_that_no_engine_reads_is_a_400(stack: Stack, wire: Wire, value: float) -> None:
    """Sampling numbers fit 63 bits."""
    data = json.dumps(wire.request(top_p="?")).replace('"?"', "1e999" if value == float("inf") else str(value))
    async with stack.http.post(stack.url(wire.path), data=data.encode()) as response:
        assert response.status == 400
        assert wire.error_of(await response.json())[1]


@both
@streamed_or_not
async def test_what_fits_no_record_is_recorded_without_it(
    stack: Stack, wire: Wire, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were anything captured that can't be written, the call would end with an error and a record that says so."""

    def misfit(*_: Any, **__: Any) -> CompletionRecord:
        raise ValueError("no record holds this")

    monkeypatch.setattr(records, "captured", misfit)
    _, body = await say(stack, wire, wire.request(stream=stream), stream=stream)
    assert "the proxy failed on this call" in body
    await assert_seals(stack)
    [call] = stack.calls
    assert (call.state, call.untrainable_reason, call.trainable) == (CompletionState.FAILED, "unrecordable", False)


@both
@streamed_or_not
async def test_a_reply_withheld_is_not_delivered(make_stack: MakeStack, wire: Wire, stream: bool) -> None:
    """The record of a finished call came too late, so the client heard an error: it never saw what the record holds."""
    stack = await make_stack(ack_wait_ms=1, commit_timeout_s=0.3)
    await stack.open()
    stack.bus.acks.clear()

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    stack.fsync = broken
    await say(stack, wire, wire.request(stream=stream), stream=stream)
    stack.bus.acks.set()
    await stack.until(lambda: bool(stack.deliveries))
    assert stack.calls[0].state is CompletionState.FINISHED
    assert [(fact.delivered, fact.reason) for fact in stack.deliveries] == [(False, "withheld")]


@both
async def test_a_small_body_that_stands_for_a_huge_one_is_a_413(make_stack: MakeStack, wire: Wire) -> None:
    """It is never decoded beyond the limit."""
    stack = await make_stack(max_request_bytes=1 << 20)
    await stack.open()
    packed = gzip.compress(b" " * (64 << 20))
    headers = {"content-encoding": "gzip"}
    async with stack.http.post(stack.url(wire.path), data=BytesIO(packed), headers=headers) as response:
        assert response.status == 413
        assert wire.error_of(await response.json())[1]


@both
async def test_a_body_far_above_the_limit_is_counted(make_stack: MakeStack, wire: Wire) -> None:
    """The 413 is mitmproxy's own then, but the rejection is on the topic."""
    stack = await make_stack(max_request_bytes=1000)
    await stack.open()
    async with stack.http.post(stack.url(wire.path), data=b"x" * 5000) as response:
        assert response.status == 413
    await stack.until(lambda: bool(stack.rejections))
    assert [rejection.reason for rejection in stack.rejections] == ["too_large"]


@both
@streamed_or_not
async def test_a_last_request_ends_its_connection(stack: Stack, wire: Wire, stream: bool) -> None:
    """`Connection: close` is obeyed, also for clients that read to the end of the connection."""
    body = json.dumps(wire.request(stream=stream)).encode()
    path = wire.stream_path if stream else wire.path
    head = (
        f"POST /s/{stack.secret}{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.port)
    writer.write(head.encode() + body)
    async with asyncio.timeout(5.0):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_path_that_is_no_text_is_a_404(stack: Stack) -> None:
    """Bytes that are no UTF-8 neither crash a step nor the rejection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.port)
    writer.write(b"POST /v1/\xff\xfe HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
    async with asyncio.timeout(5.0):
        assert b"404" in await reader.readline()
    writer.close()
    await stack.until(lambda: bool(stack.rejections))
    assert stack.rejections[0].reason == "unknown_endpoint"
