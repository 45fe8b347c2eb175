"""Long silences: signs of life by the clock, in both gaps, in each dialect's own events; and nothing that cuts a slow call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest
from mitmproxy.proxy import server

from capture_proxy.settings import ProxySettings
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import tool_call
from tests.capture_proxy.test_service import ask, both
from tests.capture_proxy.wire import Anthropic, Reader, Responses, Wire, events

MakeStack = Callable[..., Awaitable[Stack]]
KEEPALIVE_S = 0.3


async def watch(reader: Reader, pieces: int) -> list[float]:
    """The gaps between the next pieces that a client gets, in seconds."""
    gaps, last_s = [], time.monotonic()
    for _ in range(pieces):
        assert await reader.more(5.0)
        now_s = time.monotonic()
        gaps.append(now_s - last_s)
        last_s = now_s
    return gaps


def assert_alive(body: str, wire: Wire) -> None:
    """Events only, no comments; those of an open stream: no block begins or ends with one, numbers go on."""
    assert not [line for line in body.splitlines() if line.startswith(":")]
    seen = events(body)
    if isinstance(wire, Anthropic):
        assert "ping" in {event["type"] for event in seen}
    if isinstance(wire, Responses):
        assert [event["sequence_number"] for event in seen] == list(range(seen[0]["sequence_number"], len(seen)))


@both
async def test_b46_silence_before_the_first_token(make_stack: MakeStack, wire: Wire) -> None:
    """The engine says nothing for a long time: an event at least every keep-alive's time, then the answer, whole."""
    stack = await make_stack(keepalive_s=KEEPALIVE_S)
    await stack.open()
    stack.engine.pause_at = 1
    stack.engine.go.clear()
    async with stack.http.post(stack.url(wire.stream_path), json=wire.request(stream=True)) as response:
        reader = Reader(response)
        assert await reader.more(5.0)
        gaps = await watch(reader, 5)
        assert max(gaps) < 3 * KEEPALIVE_S  # this machine may be busy; the timer itself is exact
        assert wire.read_stream(reader.body).text == ""
        assert_alive(reader.body, wire)
        stack.engine.go.set()
        while await reader.more(5.0):
            pass
    said = wire.read_stream(reader.body)
    assert (said.text, said.is_over) == ("Hello there.", True)
    assert_alive(reader.body, wire)


@both
async def test_b46_silence_while_a_tool_call_is_held_back(make_stack: MakeStack, wire: Wire) -> None:
    """Tokens come, but none that may be shown: the clock runs all the same, and opens no block."""
    stack = await make_stack(keepalive_s=KEEPALIVE_S)
    await stack.open()
    stack.engine.script = lambda *_: "Look. " + tool_call("bash", {"command": "ls"})
    stack.engine.pause_at = 40
    stack.engine.go.clear()
    path = stack.url(wire.stream_path)
    async with stack.http.post(path, json=wire.request(stream=True, tools=True)) as response:
        reader = Reader(response)
        await asyncio.wait_for(stack.engine.reached.wait(), 10.0)
        while "Look." not in wire.read_stream(reader.body).text:
            assert await reader.more(5.0)
        before = reader.body
        gaps = await watch(reader, 5)
        assert max(gaps) < 3 * KEEPALIVE_S
        assert not wire.read_stream(reader.body).tools
        assert len(reader.body) > len(before)
        stack.engine.go.set()
        while await reader.more(5.0):
            pass
    said = wire.read_stream(reader.body)
    assert (said.tools, said.is_over) == ([("bash", {"command": "ls"})], True)
    assert_alive(reader.body, wire)


@both
async def test_b46_none_where_tokens_show_life(make_stack: MakeStack, wire: Wire) -> None:
    """A lively stream has no keep-alive in it."""
    stack = await make_stack(keepalive_s=5.0)
    await stack.open()
    _, body = await ask(stack, wire, stream=True)
    quick = len(events(body))
    stack.engine.script = lambda *_: "Hello there."
    _, again = await ask(stack, wire, stream=True)
    assert "ping" not in body + again
    assert len(events(again)) <= quick + 12  # deltas may come apart, nothing else


@both
async def test_t64_a_whole_answer_waits_in_silence(make_stack: MakeStack, wire: Wire) -> None:
    """A call that isn't streamed shows nothing until its end, and stays open."""
    stack = await make_stack(keepalive_s=0.05)
    await stack.open()
    stack.engine.pause_at = 2
    stack.engine.go.clear()
    asking = asyncio.create_task(ask(stack, wire, stream=False))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    done, _ = await asyncio.wait({asking}, timeout=1.0)
    assert not done
    stack.engine.go.set()
    status, body = await asking
    assert wire.read_whole(json.loads(body)).text == "Hello there."
    assert status == 200


async def test_t64_no_timer_is_shorter_than_a_call(make_stack: MakeStack) -> None:
    """What could cut a silent connection waits longer than a call may take; and the clock of keep-alives is within 10 s."""
    stack = await make_stack(call_timeout_s=4000.0)
    assert stack.proxy.settings.call_timeout_s < server.TCP_TIMEOUT
    assert ProxySettings.model_fields["keepalive_s"].default <= 10.0
    with pytest.raises(ValueError, match="keepalive_s"):
        ProxySettings(spool_dir=stack.root, model_dir=stack.root, admin_key="k", keepalive_s=11.0)


@both
async def test_headers_come_within_the_status_wait(make_stack: MakeStack, wire: Wire) -> None:
    """However long the engine thinks: the wait is counted from the request's arrival."""
    stack = await make_stack(engine_status_wait_s=0.5)
    await stack.open()
    stack.engine.accept.clear()
    began_s = time.monotonic()
    async with stack.http.post(stack.url(wire.stream_path), json=wire.request(stream=True)) as response:
        assert response.status == 200
        assert time.monotonic() - began_s < 2.0
        stack.engine.accept.set()
        assert wire.read_stream(await response.text()).is_over
