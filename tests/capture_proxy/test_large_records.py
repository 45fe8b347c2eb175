"""What costs time in proportion to a large request is done beside the loop, and the order of things stays."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from io import BytesIO

import pytest

from capture_proxy import recorder
from capture_proxy.recorder import LARGE_BYTES
from schemas.codec import Encoded, encode
from schemas.records import CompletionState, Record
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.wire import WIRES

MakeStack = Callable[..., Awaitable[Stack]]
WIRE = WIRES[0]
JSON = {"content-type": "application/json"}


class HeldEncoder:
    """An encoding that doesn't return until it may; tells which thread it runs in."""

    def __init__(self) -> None:
        self.may, self.began = threading.Event(), threading.Event()
        self.threads: set[str] = set()

    def __call__(self, record: Record) -> Encoded:
        self.threads.add(threading.current_thread().name)
        self.began.set()
        self.may.wait(20.0)
        return encode(record)


def large() -> BytesIO:
    """A request of a little more than the threshold."""
    return BytesIO(json.dumps({**WIRE.request(), "metadata": {"padding": "x" * LARGE_BYTES}}).encode())


async def begin(stack: Stack, held: HeldEncoder) -> asyncio.Task[int]:
    """A large call whose record is being encoded."""

    async def ask() -> int:
        async with stack.http.post(stack.url(WIRE.path), data=large(), headers=JSON) as response:
            await response.read()
            return response.status

    task = asyncio.create_task(ask(), name="large")
    await stack.until(held.began.is_set)
    return task


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldEncoder:
    """The recorder's way to encode large records, held."""
    held = HeldEncoder()
    monkeypatch.setattr(recorder, "encode", held)
    return held


async def test_other_calls_go_on_while_a_large_record_is_encoded(make_stack: MakeStack, held: HeldEncoder) -> None:
    """It happens in a thread: the same session's next call is answered and recorded meanwhile, and each has its one record."""
    stack = await make_stack()
    await stack.open()
    first = await begin(stack, held)
    try:
        async with stack.http.post(stack.url(WIRE.path), json=WIRE.request()) as response:
            assert response.status == 200
        assert [call.call_seq for call in stack.calls] == [2]
        assert not first.done()
    finally:
        held.may.set()
    assert await asyncio.wait_for(first, 10.0) == 200
    await stack.until(lambda: len(stack.calls) == 2)
    assert sorted((call.call_seq, call.state) for call in stack.calls) == [
        (1, CompletionState.FINISHED),
        (2, CompletionState.FINISHED),
    ]
    assert threading.main_thread().name not in held.threads


async def test_a_seal_that_gives_up_waiting_leaves_one_record(make_stack: MakeStack, held: HeldEncoder) -> None:
    """The seal writes the record of a call that takes too long; what the thread makes of it afterwards is not a second one."""
    stack = await make_stack(seal_drain_s=0.2, seal_delivery_s=0.2)
    await stack.open()
    first = await begin(stack, held)
    try:
        sealed = await stack.proxy.recorder.seal(next(iter(stack.proxy.recorder.book.active())), "done")
    finally:
        held.may.set()
    assert sealed == 1
    assert await asyncio.wait_for(first, 10.0) >= 400
    assert [(call.call_seq, call.state) for call in stack.calls] == [(1, CompletionState.ABORTED)]
