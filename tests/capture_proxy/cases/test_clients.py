"""What clients do: leave, come twice, ask oddly, bring secrets and headers of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from capture_proxy.client_info import client_of
from schemas import arrays, ids
from schemas.records import CompletionState
from schemas.topics import TOPICS
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import CharRenderer
from tests.capture_proxy.test_service import ask, both
from tests.capture_proxy.wire import TOOL, WIRES, Reader, Wire

MakeStack = Callable[..., Awaitable[Stack]]
CHAT, MESSAGES = WIRES[0], WIRES[1]


def of_calls() -> list[str]:
    """Tasks that belong to calls."""
    names = [task.get_name() for task in asyncio.all_tasks() if not task.done()]
    return [name for name in names if name.startswith(("call-", "sample-"))]


@both
async def test_b98_a_client_that_leaves_in_mid_stream(stack: Stack, wire: Wire) -> None:
    """The engine is told within a second, one record holds what came, nothing is left; a retry is another call."""
    stack.engine.script = lambda *_: "x" * 2000
    stack.engine.pause_at = 4
    stack.engine.go.clear()
    async with aiohttp.ClientSession() as http:
        response = await http.post(stack.url(wire.stream_path), json=wire.request(stream=True))
        reader = Reader(response)
        while len(wire.read_stream(reader.body).text) < 3:
            assert await reader.more(5.0)
        left_s = time.monotonic()
        response.close()
    await stack.until(lambda: bool(stack.engine.aborts))
    assert time.monotonic() - left_s < 1.0
    await stack.until(lambda: bool(stack.calls and stack.deliveries))
    [record], [delivery] = stack.calls, stack.deliveries
    assert (record.state, record.finish_reason, record.untrainable_reason) == (
        CompletionState.ABORTED,
        "abort",
        "aborted",
    )
    assert list(arrays.unpack_ids(record.output_ids)) == CharRenderer().encode("xxx")
    assert (delivery.delivered, delivery.reason) == (False, "client_left")
    assert stack.proxy.tap.in_flight == 0
    await stack.until(lambda: not of_calls())
    stack.engine.go.set()
    assert (await ask(stack, wire, stream=False))[0] == 200
    await stack.until(lambda: len(stack.calls) == 2)
    assert stack.calls[1].completion_id != record.completion_id


async def test_t44_a_client_that_is_gone_and_a_stop(stack: Stack) -> None:
    """What was sampled until the abort is recorded as undelivered; at the stop everything is flushed and sealed."""
    stack.engine.pause_at = 3
    stack.engine.go.clear()
    asking = asyncio.create_task(ask(stack, CHAT, stream=True))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    asking.cancel()
    await stack.until(lambda: bool(stack.engine.aborts))
    stack.engine.reached.clear()
    running = asyncio.create_task(ask(stack, CHAT, stream=True))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    await stack.proxy.stop()
    await asyncio.gather(running, return_exceptions=True)
    assert [c.state for c in stack.calls] == [CompletionState.ABORTED] * 2
    assert [arrays.unpack_ids(c.output_ids).size for c in stack.calls] == [2, 2]
    assert not any(c.trainable for c in stack.calls)
    by_call = {d.call_seq: d.delivered for d in stack.deliveries}
    assert by_call == {1: False, 2: True}  # the second heard how it ended
    assert stack.seals[0].last_seq == 2
    assert stack.proxy.spool.relay.unacked == 0


@both
async def test_b100_a_retry_after_the_first_was_closed(stack: Stack, wire: Wire) -> None:
    """The first attempt is aborted, the second, with the same body, is the step."""
    stack.engine.pause_at = 3
    stack.engine.go.clear()
    first = asyncio.create_task(ask(stack, wire, stream=True))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    first.cancel()
    await stack.until(lambda: bool(stack.engine.aborts))
    stack.engine.go.set()
    assert (await ask(stack, wire, stream=True))[0] == 200
    await stack.until(lambda: len(stack.deliveries) == 2)
    assert [c.state for c in stack.calls] == [CompletionState.ABORTED, CompletionState.FINISHED]
    assert len({c.request_digest for c in stack.calls}) == 1
    assert [d.delivered for d in sorted(stack.deliveries, key=lambda d: d.call_seq)] == [False, True]


@both
async def test_b100_two_equal_requests_at_a_time_are_two_calls(stack: Stack, wire: Wire) -> None:
    """Both are served, each with its own generation: they may be meant to run side by side."""
    replies = iter(["one", "two"])
    stack.engine.script = lambda *_: next(replies)
    stack.engine.pause_at = 2
    stack.engine.go.clear()
    asking = [asyncio.create_task(ask(stack, wire, stream=True)) for _ in range(2)]
    await stack.until(lambda: len(stack.engine.requests) == 2)
    stack.engine.go.set()
    answers = await asyncio.gather(*asking)
    assert {wire.read_stream(body).text for _, body in answers} == {"one", "two"}
    await stack.until(lambda: len(stack.deliveries) == 2)
    assert {c.text for c in stack.calls} == {"one", "two"}
    assert all(c.trainable for c in stack.calls)


async def test_t31_a_marked_retry_while_the_first_runs(stack: Stack) -> None:
    """Two calls, two generations, each socket its own; the record keeps the mark, which proves nothing."""
    replies = iter(["one", "two"])
    stack.engine.script = lambda *_: next(replies)
    stack.engine.pause_at = 2
    stack.engine.go.clear()
    first = asyncio.create_task(ask(stack, CHAT, stream=True))
    await stack.until(lambda: len(stack.engine.requests) == 1)

    async def again() -> str:
        headers = {"x-stainless-retry-count": "1"}
        async with stack.http.post(stack.url(CHAT.path), json=CHAT.request(stream=True), headers=headers) as response:
            return await response.text()

    second = asyncio.create_task(again())
    await stack.until(lambda: len(stack.engine.requests) == 2)
    stack.engine.go.set()
    assert [CHAT.read_stream((await first)[1]).text, CHAT.read_stream(await second).text] == ["one", "two"]
    await stack.until(lambda: len(stack.deliveries) == 2)
    assert [c.notes.get("client") for c in stack.calls] == [None, {"retry": 1}]
    assert [c.parent_id for c in stack.calls] == ["", ""]


async def test_b26_counting_tokens_counts_all_of_the_prompt(stack: Stack) -> None:
    """System, tools and an image, without `max_tokens`: as many as the same body's call has; nothing is sampled or recorded."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
    body = {
        "model": "m",
        "system": "Be brief.",
        "tools": [{"name": name, "description": "d", "input_schema": TOOL["parameters"]} for name in ("a", "b")],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}],
    }
    async with stack.http.post(stack.url("/v1/messages/count_tokens?beta=true"), json=body) as response:
        assert response.status == 200
        counted = await response.json()
    assert set(counted) == {"input_tokens"}
    assert not stack.engine.requests
    async with stack.http.post(stack.url("/v1/messages?beta=true"), json={**body, "max_tokens": 9}) as response:
        assert response.status == 200
    assert counted["input_tokens"] == len(stack.engine.requests[0]["input_ids"])
    _, sealed = await stack.seal()
    assert sealed["last_seq"] == 1


async def test_b32_odd_probes_and_aliases(stack: Stack) -> None:
    """HEAD /, a model list with a query, a dated model with `?beta=true`, both ways to bring the key: all answered."""
    address, model = stack.proxy.data_address, "claude-haiku-4-5-20251001"
    async with stack.http.head(address + "/") as response:
        assert response.status == 200
    for headers in ({"x-api-key": stack.secret}, {"authorization": f"Bearer {stack.secret}"}):
        headers["anthropic-version"] = "2023-06-01"
        async with stack.http.get(f"{address}/v1/models?limit=1000", headers=headers) as response:
            assert response.status == 200
            assert (await response.json())["data"]
        body = MESSAGES.request(model=model)
        async with stack.http.post(f"{address}/v1/messages?beta=true", json=body, headers=headers) as response:
            assert response.status == 200
            assert (await response.json())["model"] == model
    await stack.until(lambda: len(stack.calls) == 2)
    assert {c.model_requested for c in stack.calls} == {model}
    assert not stack.rejections


@pytest.mark.parametrize(
    ("wire", "path", "headers"),
    [
        (WIRES[0], "/v1/chat/completions", {"authorization": "Bearer nope"}),
        (WIRES[1], "/v1/messages", {"x-api-key": "nope", "anthropic-version": "2023-06-01"}),
        (WIRES[2], "/v1/responses", {}),
        (WIRES[3], "/v1beta/models/m:generateContent?key=nope", {}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_t43_an_unknown_key(stack: Stack, wire: Wire, path: str, headers: dict[str, str]) -> None:
    """401 in the dialect's shape; no session comes into being; the rejection holds the key's hash."""
    async with stack.http.post(stack.proxy.data_address + path, json=wire.request(), headers=headers) as response:
        assert response.status == 401
        assert wire.error_of(await response.json())[1]
    await stack.until(lambda: bool(stack.rejections))
    [rejection] = stack.rejections
    brings_one = "nope" in path or bool(headers)
    assert rejection.secret_hash == (ids.secret_hash("nope") if brings_one else "")
    assert rejection.reason == ("unknown_secret" if brings_one else "no_secret")
    assert (rejection.session_id, str(rejection.dialect)) == ("", wire.name)
    assert len(stack.openings) == 1
    assert not stack.calls


async def test_t79_no_secret_reaches_a_topic_or_the_disk(stack: Stack) -> None:
    """Keys in every place that a client may put one, right and wrong: neither in records, keys or headers, nor in the spool."""
    secrets = ["sk-real-provider-key", "cookie-secret", "query-secret", "wrong-path-secret", stack.secret]
    headers = {
        "authorization": "Bearer sk-real-provider-key",
        "x-api-key": "sk-real-provider-key",
        "cookie": "session=cookie-secret",
        "x-session-id": stack.secret,
    }
    address = stack.proxy.data_address
    urls = [
        stack.url("/v1/chat/completions?key=query-secret"),
        f"{address}/s/wrong-path-secret/v1/chat/completions",
        f"{address}/x/s/wrong-path-secret/v1/chat/completions",
        f"{address}//s/{stack.secret}/v1/chat/completions",
        f"{address}/v1/s/{stack.secret}/chat/completions",
        f"{address}/{stack.secret}/v1/chat/completions",
        f"{address}/%73/{stack.secret}/v1/nothing",
        f"{address}/v1/chat/completions?key=query-secret",
    ]
    for url in urls:
        async with stack.http.post(url, json=CHAT.request(), headers=headers) as response:
            said = await response.text()
            assert not [secret for secret in secrets if secret in said]
    await stack.until(lambda: len(stack.rejections) == len(urls) - 1 and len(stack.deliveries) == 1)
    await stack.until(lambda: stack.proxy.spool.relay.unacked == 0)
    written = b"".join(
        (d.key or b"") + d.value + b"".join(d.headers.values()) for topic in TOPICS for d in stack.bus.records(topic)
    )
    written += b"".join(path.read_bytes() for path in stack.root.rglob("*") if path.is_file())
    assert written
    assert not [secret for secret in secrets if secret.encode() in written]
    assert ids.secret_hash(stack.secret).encode() in written


@both
async def test_b143_the_engine_gets_only_what_is_ours(stack: Stack, wire: Wire) -> None:
    """An allow-list of headers, our own affinity key, the same on every call of the session, and no key of the client's."""
    headers = {
        **wire.headers("sk-test"),
        "accept-encoding": "br, zstd",
        "connection": "keep-alive, x-foo",
        "x-foo": "hop by hop",
        "x-bar": "end to end",
    }
    for stream in (False, True):
        path = wire.stream_path if stream else wire.path
        async with stack.http.post(stack.url(path), json=wire.request(stream=stream), headers=headers) as response:
            assert response.status == 200
            assert "content-encoding" not in response.headers
            await response.read()
    allowed = {"host", "accept", "accept-encoding", "user-agent", "content-type", "content-length", "x-smg-routing-key"}
    for sent in stack.engine.request_headers:
        assert {name.lower() for name in sent} <= allowed
        assert "sk-test" not in json.dumps(sent)
    affinity = {
        dict(zip(map(str.lower, h), h.values(), strict=True))["x-smg-routing-key"] for h in stack.engine.request_headers
    }
    assert affinity == {"session-1"}


async def test_a_request_after_the_seal_is_told_so(stack: Stack) -> None:
    """409 in each dialect, a rejection that names the session, and no number spent."""
    await stack.seal()
    for wire in WIRES:
        status, body = await ask(stack, wire, stream=False)
        assert status == 409
        assert "ended" in wire.error_of(json.loads(body))[1]
    await stack.until(lambda: len(stack.rejections) == len(WIRES))
    assert {(r.reason, r.session_id) for r in stack.rejections} == {("sealed", "session-1")}
    assert stack.seals[0].last_seq == 0


async def send_raw(stack: Stack, data: bytes, *, then: bytes = b"") -> bytes:
    """Bytes to the data listener as they are; what came back until the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.port)
    writer.write(data)
    await writer.drain()
    if then:
        await asyncio.sleep(0.05)
        writer.write(then)
    writer.write_eof()
    async with asyncio.timeout(10.0):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("at", ["headers", "body", "chunk"])
async def test_a_disconnect_before_the_request_is_whole(stack: Stack, at: str) -> None:
    """No call, no record; a request whose head came is a rejection `incomplete_request`, and nothing is left of it."""
    path = f"/s/{stack.secret}/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n"
    data = {
        "headers": head,
        "body": f"{head}content-length: 5000\r\n\r\n{{",
        "chunk": f"{head}transfer-encoding: chunked\r\n\r\n5\r\nabc",
    }[at]
    await send_raw(stack, data.encode())
    if at != "headers":
        await stack.until(lambda: bool(stack.rejections))
        [rejection] = stack.rejections
        assert (rejection.reason, rejection.path) == ("incomplete_request", "/v1/chat/completions")
    await stack.until(lambda: stack.proxy.listener.connections == 0)
    admit = stack.proxy._steps.addons[0]
    assert (admit.bodies_bytes, admit._reading) == (0, {})
    assert not stack.engine.requests


async def test_a_body_that_doesnt_come_to_its_end(make_stack: MakeStack) -> None:
    """A client that sends a byte now and then is cut after its time, and told of as `request_timeout`."""
    stack = await make_stack(request_read_s=0.3)
    await stack.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.port)
    writer.write(f"POST /s/{stack.secret}/v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n".encode())
    async with asyncio.timeout(5.0):
        while not stack.rejections:
            writer.write(b" ")
            await asyncio.sleep(0.1)
        with contextlib.suppress(ConnectionResetError):  # a byte that was on its way as the connection closed
            await reader.read()
    writer.close()
    [rejection] = stack.rejections
    assert (rejection.reason, rejection.status) == ("request_timeout", 408)
    await stack.until(lambda: stack.proxy.listener.connections == 0)


async def test_a_client_that_takes_nothing_any_more_is_given_up(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream fills every buffer on the way: after a while the engine's work for it ends, with a record."""
    stack = await make_stack(stalled_s=0.2)
    await stack.open()
    stack.engine.pause_at = 5
    stack.engine.go.clear()
    original, writes = web.StreamResponse.write, []

    async def full(self: web.StreamResponse, data: Any) -> None:
        if self.content_type == "application/x-ndjson":
            writes.append(data)
            if len(writes) > 2:
                await asyncio.Event().wait()
        await original(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", full)
    asking = asyncio.create_task(ask(stack, CHAT, stream=True))
    await stack.until(lambda: bool(stack.calls and stack.engine.aborts))
    [record] = stack.calls
    assert (record.state, record.error.kind) == (CompletionState.ABORTED, "client_stalled")
    with pytest.raises(aiohttp.ClientPayloadError):  # it is cut: an end couldn't reach it either
        await asyncio.wait_for(asking, 5.0)
    await stack.until(lambda: bool(stack.deliveries))
    assert not stack.deliveries[0].delivered


def test_facts_of_a_client_are_bounded() -> None:
    """Nothing that a client says of itself makes a record large."""
    facts: dict[str, Any] = client_of({"x-session-id": "x" * 10_000, "x-stainless-retry-count": "9" * 500}, b"{}")
    assert facts == {"retry": 999999}
