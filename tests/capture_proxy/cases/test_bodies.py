"""Bodies of every size and shape: what is read, what is refused, and that nothing of it stays or holds others up."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.connection import ConnectionState

from capture_proxy.addons.transcode import StreamTranscoder
from capture_proxy.dialects import DIALECTS
from capture_proxy.engines.sglang_wire import StreamReader
from capture_proxy.reply import ChatRequest, Finished, Reply, Started, TextDelta, to_line
from schemas import arrays
from tests.capture_proxy.cases.test_durable import whole_calls
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import CharRenderer
from tests.capture_proxy.test_service import ask, both
from tests.capture_proxy.wire import WIRES, Reader, Wire

MakeStack = Callable[..., Awaitable[Stack]]
CHAT, MESSAGES = WIRES[0], WIRES[1]
MIB = 1 << 20


async def text_only(stack: Stack) -> None:
    """A renderer for text models: an image is a fixed placeholder, however large it is."""
    await stack.proxy.engines.choose("policy-1", "session-1")  # its templates are compared first
    chars = CharRenderer()

    def render(messages: Any, tools: Any, template_kwargs: Any) -> list[int]:
        del tools, template_kwargs
        kept = [part for m in messages for part in (m["content"] if isinstance(m["content"], list) else [m["content"]])]
        return chars.encode("\n".join(p if isinstance(p, str) else str(p.get("text", "[image]")) for p in kept))

    stack.proxy._renderer.render = render  # type: ignore[method-assign, assignment]


def with_image(size_bytes: int) -> dict[str, Any]:
    """A Messages request with a large image in its history."""
    data = base64.b64encode(bytes(size_bytes)).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "what is it?"}]},
        {"role": "assistant", "content": "An image."},
        {"role": "user", "content": "And now?"},
    ]
    return MESSAGES.request(messages=messages)


async def test_b101_ten_megabytes_hold_nobody_up(make_stack: MakeStack) -> None:
    """A 9 MB image in the history is answered and recorded, while another stream's signs of life go on."""
    stack = await make_stack(keepalive_s=0.4)
    await stack.open()
    await text_only(stack)
    body = json.dumps(with_image(9 * MIB)).encode()
    stack.engine.pause_at = 2
    stack.engine.go.clear()
    async with stack.http.post(stack.url(CHAT.path), json=CHAT.request(stream=True)) as response:
        reader = Reader(response)
        await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
        large = asyncio.create_task(stack.http.post(stack.url(MESSAGES.path), data=BytesIO(body)))
        for _ in range(4):
            assert await reader.more(3.0)
        stack.engine.go.set()
        async with await large as answer:
            assert answer.status == 200
        while await reader.more(5.0):
            pass
    await stack.until(lambda: len(stack.deliveries) == 2)
    [call] = [c async for c in whole_calls(stack) if str(c.dialect) == "anthropic"]
    assert call.request_bytes > 12 * MIB
    assert call.prompt_len < 1000


async def raw(stack: Stack, head: str, body: bytes = b"", *, wire: Wire = CHAT) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of an answer to a request of which only `body` is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.port)
    writer.write(f"POST /s/{stack.secret}{wire.path} HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode() + body)
    async with asyncio.timeout(10.0):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        text = await reader.readexactly(int(headers["content-length"]))
    writer.close()
    return int(lines[0].split()[1]), headers, text


@both
async def test_b101_above_the_limit_is_refused_without_reading_the_rest(make_stack: MakeStack, wire: Wire) -> None:
    """40 MB announced, a little sent: the dialect's 413 comes at once; the connection ends with it."""
    stack = await make_stack(max_request_bytes=32 * MIB)
    await stack.open()
    status, headers, body = await raw(stack, f"content-length: {40 * MIB}", b"{" * 1000, wire=wire)
    assert (status, headers["connection"]) == (413, "close")
    kind, message = wire.error_of(json.loads(body))
    assert str(32 * MIB) in message
    assert kind in {"request_too_large", "invalid_request_error", "INVALID_ARGUMENT"}
    await stack.until(lambda: bool(stack.rejections))
    [rejection] = stack.rejections
    assert (rejection.reason, rejection.status, rejection.request_bytes) == ("too_large", 413, 40 * MIB)
    assert str(rejection.dialect) == wire.name
    assert stack.proxy._steps.addons[0].bodies_bytes == 0


async def test_b101_chunks_without_a_length(make_stack: MakeStack) -> None:
    """Below the limit they are a body like any other; above it they are refused as soon as they are too many."""
    stack = await make_stack(max_request_bytes=MIB)
    await stack.open()
    await text_only(stack)

    async def chunked(data: bytes) -> Any:
        for at in range(0, len(data), 1 << 16):
            yield data[at : at + (1 << 16)]

    small = json.dumps(CHAT.request("x" * 1000)).encode()
    async with stack.http.post(stack.url(CHAT.path), data=chunked(small)) as response:
        assert response.status == 200
    chunk = f"{1 << 16:x}\r\n".encode() + b"x" * (1 << 16) + b"\r\n"
    status, _, body = await raw(stack, "transfer-encoding: chunked", chunk * 20)
    assert status == 413
    assert CHAT.error_of(json.loads(body))[1]
    assert stack.proxy._steps.addons[0].bodies_bytes == 0


async def test_b101_a_refused_upload_that_goes_on_is_thrown_away(make_stack: MakeStack) -> None:
    """A client that sends all of it before it reads still gets the answer, and nothing is kept."""
    stack = await make_stack(max_request_bytes=MIB)
    await stack.open()
    async with stack.http.post(stack.url(CHAT.path), data=BytesIO(b"x" * (20 * MIB))) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "request_too_large"
    await stack.until(lambda: stack.proxy._steps.addons[0].bodies_bytes == 0)
    async with stack.http.post(stack.url(CHAT.path), json=CHAT.request()) as response:
        assert response.status == 200


async def test_b101_many_large_ones_at_a_time(make_stack: MakeStack) -> None:
    """Together they may hold only so much memory: the next one is asked to come again (429 with Retry-After)."""
    stack = await make_stack(max_bodies_bytes=25 * MIB)
    await stack.open()
    admit = stack.proxy._steps.addons[0]
    writers = []
    for _ in range(2):
        _, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.port)
        writer.write(
            f"POST /s/{stack.secret}{CHAT.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {10 * MIB}\r\n\r\n{{".encode()
        )
        writers.append(writer)
    await stack.until(lambda: admit.bodies_bytes == 20 * MIB)
    for wire in WIRES:
        status, headers, body = await raw(stack, f"content-length: {10 * MIB}", wire=wire)
        assert status == 429
        assert headers["retry-after"]
        assert "try again" in wire.error_of(json.loads(body))[1]
    for writer in writers:
        writer.close()
    await stack.until(lambda: admit.bodies_bytes == 0)
    assert {r.reason for r in stack.rejections} <= {"overloaded", "incomplete_request"}


@both
async def test_b140_too_many_calls_are_refused_before_they_begin(make_stack: MakeStack, wire: Wire) -> None:
    """429 with Retry-After in the dialect's shape; the calls that run go on; the numbers are in health."""
    stack = await make_stack(max_calls=2)
    await stack.open()
    stack.engine.pause_at = 2
    stack.engine.go.clear()
    running = [asyncio.create_task(ask(stack, wire, stream=True)) for _ in range(2)]
    await stack.until(lambda: len(stack.engine.requests) == 2)
    async with stack.http.post(stack.url(wire.path), json=wire.request()) as response:
        assert response.status == 429
        assert response.headers["retry-after"]
        assert wire.error_of(await response.json())[1]
    _, health = await stack.admin("GET", "/health")
    assert health["in_flight"] == 2
    assert set(health["loop_lag"]) == {"now_ms", "sustained_ms", "p99_ms", "worst_ms"}
    stack.engine.go.set()
    assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]
    await stack.until(lambda: bool(stack.rejections))
    assert (stack.rejections[0].reason, str(stack.rejections[0].dialect)) == ("overloaded", wire.name)


async def test_b140_a_loop_that_is_late_takes_no_more_calls(stack: Stack) -> None:
    """Several probes late in a row: 429; one late probe is no overload."""
    await stack.proxy.lag.stop()
    lags = stack.proxy.lag._lags
    lags.extend([0.0, 9.0, 0.0])
    assert (await ask(stack, CHAT, stream=False))[0] == 200
    lags.extend([2.0, 3.0, 2.5])
    status, body = await ask(stack, CHAT, stream=False)
    assert (status, "behind" in body) == (429, True)
    async with stack.http.get(stack.url("/v1/models")) as response:
        assert response.status == 200
    lags.append(0.0)
    assert (await ask(stack, CHAT, stream=False))[0] == 200


async def test_b140_long_prompts_leave_the_loop_free(make_stack: MakeStack) -> None:
    """Six prompts of 100k characters at once: the loop is never late by a keep-alive's time."""
    stack = await make_stack(context_length=1_000_000)
    await stack.open()
    answers = await asyncio.gather(*(ask(stack, WIRES[i % 4], stream=True, text=f"{i}" * 100_000) for i in range(6)))
    assert [status for status, _ in answers] == [200] * 6
    _, health = await stack.admin("GET", "/health")
    assert health["loop_lag"]["worst_ms"] < stack.proxy.settings.keepalive_s * 1000


TEXT = "漢🦊ö"
ID = "11112222-3333-4444-5555-666677778888"


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_b104_characters_cut_between_the_tap_and_the_client(name: str) -> None:
    """At every byte offset of the tap's body: the client's text is the same, without U+FFFD."""
    reply = Reply(
        completion_id=ID, model="m", text=TEXT, finish_reason="stop", prompt_tokens=1, completion_tokens=3, created_at=1
    )
    tap = b"".join(map(to_line, (Started(ID, "m", 1, 1), TextDelta(TEXT), Finished(reply))))
    bodies = set()
    for cut in range(1, len(tap)):
        flow: Any = SimpleNamespace(error=None, client_conn=SimpleNamespace(state=ConnectionState.OPEN))
        call: Any = SimpleNamespace(completion_id=ID, is_terminal_sent=False, is_withheld=False)
        request = ChatRequest(dialect=name, model="m", messages=[], stream=True)
        transcoder = StreamTranscoder(flow, call, DIALECTS[name].stream_encoder(request))
        bodies.add(b"".join([*transcoder(tap[:cut]), *transcoder(tap[cut:]), *transcoder(b"")]).decode())
    [body] = bodies
    [wire] = [wire for wire in WIRES if wire.name == name]
    assert wire.read_stream(body).text == TEXT
    assert "\ufffd" not in body


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_b104_events_cut_between_the_engine_and_us(newline: bytes) -> None:
    r"""At every byte offset, also between \r and \n and inside `data:`: the same ids."""
    events = [
        {"text": TEXT, "output_ids": [7], "meta_info": {"completion_tokens": 1, "finish_reason": None}},
        {"text": TEXT, "output_ids": [8], "meta_info": {"completion_tokens": 2, "finish_reason": {"type": "stop"}}},
    ]
    body = b"".join(
        b"data: " + json.dumps(e, ensure_ascii=False).encode() + newline * 2 for e in events
    ) + b"data: [DONE]" + newline * 2  # fmt: skip
    for cut in range(len(body) + 1):
        reader = StreamReader()
        chunks = [*reader.feed(body[:cut]), *reader.feed(body[cut:]), *reader.end()]
        assert [i for chunk in chunks for i in chunk.new_ids] == [7, 8]
        assert [chunk.finish.reason for chunk in chunks if chunk.finish] == ["stop"]


async def test_b104_a_whole_way_through(stack: Stack) -> None:
    """Text and tool arguments with characters of several bytes arrive in each dialect as they were sampled."""
    stack.engine.script = lambda *_: TEXT * 20
    for wire in WIRES:
        assert wire.read_stream((await ask(stack, wire, stream=True))[1]).text == TEXT * 20


@both
async def test_b106_nul_passes_through(stack: Stack, wire: Wire) -> None:
    """The model sees what stands behind it, the same on every turn; the record holds it as it came."""
    text = "a\u0000b\u0001\u001b[0m"
    for _ in range(2):
        assert (await ask(stack, wire, stream=False, text=text))[0] == 200
    first, second = (CharRenderer().decode(r["input_ids"]) for r in stack.engine.requests)
    assert text in first
    assert first == second
    await stack.until(lambda: len(stack.calls) == 2)
    assert [c.messages[-1]["content"] for c in stack.calls] == [text, text]


@both
async def test_b107_lone_surrogates_become_replacement_characters(stack: Stack, wire: Wire) -> None:
    """A string cut inside an emoji: no 500, the same tokens each time, counted; in keys, tool names and arguments too."""
    body = wire.request("ok \ud83d end \udc00", tools=True)
    data = json.dumps(body).replace('"description"', '"descr\\udc00"', 1).encode()
    assert b"\\ud83d" in data
    for _ in range(2):
        async with stack.http.post(stack.url(wire.path), data=data) as response:
            assert response.status == 200, await response.text()
    prompts = [CharRenderer().decode(r["input_ids"]) for r in stack.engine.requests]
    assert "ok \ufffd end \ufffd" in prompts[0]
    assert prompts[0] == prompts[1]
    await stack.until(lambda: len(stack.calls) == 2)
    assert all("repaired: lone surrogate" in c.notes["request"] for c in stack.calls)
    assert arrays.unpack_ids(stack.calls[0].suffix_ids).tolist() == stack.engine.requests[0]["input_ids"]


BAD = {
    "truncated": b'{"model": "m", "messages": [{"role": "us',
    "empty": b"",
    "no_json": b"hello",
    "not_an_object": b"[1, 2]",
    "null": b"null",
    "nan": b'{"temperature": NaN}',
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep_lists": b'{"messages":' + b"[" * 100_000,
    "bytes": b'{"model": "\xff\xfe"}',
    "nul_bytes": b"\x00" * 100,
    "two": b"{}{}",
    "bom": b"\xef\xbb\xbf[]",
    "utf16": "{}".encode("utf-16"),
    "long_number": b'{"temperature": ' + b"9" * 10_000 + b"}",
    "many_keys": b"{" + b",".join(b'"k%d":1' % i for i in range(50_000)) + b"}",
    "wrong_types": b'{"model": 3, "messages": {"role": 1}, "contents": 4, "input": 5, "tools": "x", "stream": []}',
}


@both
@pytest.mark.parametrize("kind", sorted(BAD))
async def test_a_bad_body_is_the_dialects_400(stack: Stack, wire: Wire, kind: str) -> None:
    """A clear error in the client's own shape, one rejection with a named reason, and the next request is served."""
    async with stack.http.post(stack.url(wire.path), data=BAD[kind]) as response:
        assert response.status == 400
        assert response.content_type == "application/json"
        assert wire.error_of(await response.json())[1]
    await stack.until(lambda: bool(stack.rejections))
    [rejection] = stack.rejections
    assert (rejection.reason, rejection.session_id) == ("bad_request", "session-1")
    assert (await ask(stack, wire, stream=False))[0] == 200
    assert not stack.proxy.tap._waiting
