"""A marked retry of an answer that got lost gets that very answer; any other repeated request is a call of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.fakes import tool_call
from tests.capture_proxy.test_hold_back import hold, is_recorded
from tests.capture_proxy.test_lineage import chat, user
from tests.capture_proxy.test_service import both, streamed_or_not
from tests.capture_proxy.wire import Reader, Wire

MakeStack = Callable[..., Awaitable[Stack]]
RETRY = {"x-stainless-retry-count": "1"}


async def lose(stack: Stack, path: str, body: dict[str, Any]) -> None:
    """A call whose engine finishes, and whose client leaves while its record isn't durable yet."""
    disk = await hold(stack)
    stack.engine.script = lambda _prompt, _request: "Let me look. " + tool_call("bash", {"command": "ls"})
    request = asyncio.create_task(send(stack, path, body))
    await stack.until(lambda: is_recorded(stack.proxy))
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await stack.until(lambda: not stack.proxy.recorder.book.active()[0].undelivered)
    stack.bus.acks.set()
    disk.may.set()
    await stack.until(lambda: len(stack.deliveries) == 1)


async def send(stack: Stack, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, str]:
    """One request."""
    async with stack.http.post(stack.url(path), json=body, headers=headers) as response:
        return response.status, await response.text()


@both
@streamed_or_not
async def test_t32_a_marked_retry_gets_the_lost_answer(make_stack: MakeStack, wire: Wire, stream: bool) -> None:
    """No second generation and no second record; the delivery becomes true, and a second retry is a new call."""
    stack = await make_stack(ack_wait_ms=1)
    body = wire.request(stream=stream, tools=True)
    path = wire.stream_path if stream else wire.path
    await lose(stack, path, body)
    status, text = await send(stack, path, body, RETRY)
    assert status == 200
    said = wire.read_stream(text) if stream else wire.read_whole(json.loads(text))
    assert (said.text.strip(), said.tools, said.is_over) == ("Let me look.", [("bash", {"command": "ls"})], True)
    await stack.until(lambda: len(stack.deliveries) == 2)
    assert [(d.call_seq, d.delivered, d.reason) for d in stack.deliveries] == [
        (1, False, stack.deliveries[0].reason),
        (1, True, "repeated"),
    ]
    assert len(stack.engine.requests) == len(stack.calls) == 1
    assert stack.proxy.recorder.counts["repeated"] == 1
    assert (await send(stack, path, body, RETRY))[0] == 200
    await stack.until(lambda: len(stack.calls) == 2)
    assert len(stack.engine.requests) == 2
    assert (await stack.seal())[1]["last_seq"] == 2


async def test_the_repeated_answer_is_gone_on_from(make_stack: MakeStack) -> None:
    """The next turn's parent is the call whose answer was sent again."""
    stack = await make_stack(ack_wait_ms=1)
    body = {"model": "policy", "messages": [user("Hi")]}
    await lose(stack, "/v1/chat/completions", body)
    status, text = await send(stack, "/v1/chat/completions", body, RETRY)
    assert status == 200
    answer = json.loads(text)["choices"][0]["message"]
    await chat(stack, [user("Hi"), answer, user("on")])
    await stack.until(lambda: len(stack.calls) == 2)
    first, second = stack.calls
    assert second.parent_id == first.completion_id


@both
async def test_an_unmarked_repetition_is_a_new_call(make_stack: MakeStack, wire: Wire) -> None:
    """The same body without the retry's header: a person may want another answer."""
    stack = await make_stack(ack_wait_ms=1)
    body = wire.request(tools=True)
    await lose(stack, wire.path, body)
    assert (await send(stack, wire.path, body))[0] == 200
    await stack.until(lambda: len(stack.calls) == 2)
    assert len(stack.engine.requests) == 2


@both
async def test_t31_b100_a_marked_retry_of_a_running_call_is_a_call_of_its_own(stack: Stack, wire: Wire) -> None:
    """Both are generated, each socket gets its own answer, and the record keeps the header."""
    stack.engine.pause_at = 3
    stack.engine.go.clear()
    body = wire.request(stream=True)
    async with stack.http.post(stack.url(wire.stream_path), json=body) as one:
        await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
        async with stack.http.post(stack.url(wire.stream_path), json=body, headers=RETRY) as two:
            await stack.until(lambda: len(stack.engine.requests) == 2)
            stack.engine.go.set()
            for response in (one, two):
                reader = Reader(response)
                while await reader.more(5.0):
                    pass
                assert wire.read_stream(reader.body).text == "Hello there."
    await stack.until(lambda: len(stack.calls) == len(stack.deliveries) == 2)
    assert len({c.completion_id for c in stack.calls}) == 2
    assert [c.notes.get("client", {}).get("retry") for c in stack.calls] == [None, 1]
    assert all(d.delivered for d in stack.deliveries)
