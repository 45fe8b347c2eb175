"""Requests that don't become calls: refused in the dialect's shape, and put on `capture.rejections` without the secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from schemas import ids
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.test_service import ask, both
from tests.capture_proxy.wire import WIRES, Wire

MakeStack = Callable[..., Awaitable[Stack]]


@both
async def test_an_unknown_secret_is_a_401(stack: Stack, wire: Wire) -> None:
    """The dialect's own 401; the rejection names the secret's hash, never the secret, nor the path that held it."""
    url = f"{stack.proxy.data_address}/s/not-a-secret{wire.path}"
    async with stack.http.post(url, json=wire.request()) as response:
        assert response.status == 401
        assert wire.error_of(await response.json())[1]
    await stack.until(lambda: bool(stack.rejections))
    [rejection] = stack.rejections
    assert (rejection.reason, rejection.status, rejection.dialect) == ("unknown_secret", 401, wire.name)
    assert rejection.secret_hash == ids.secret_hash("not-a-secret")
    assert rejection.path == wire.path
    assert all(b"not-a-secret" not in d.value for d in stack.bus.records("capture.rejections"))
    assert not stack.engine.requests
    assert not stack.calls


@both
async def test_no_secret_at_all_is_a_401(stack: Stack, wire: Wire) -> None:
    """A request without a key is told where to put it."""
    async with stack.http.post(stack.proxy.data_address + wire.path, json=wire.request()) as response:
        assert response.status == 401
    await stack.until(lambda: bool(stack.rejections))
    assert stack.rejections[0].reason == "no_secret"


@both
async def test_a_sealed_lease_is_a_409(stack: Stack, wire: Wire) -> None:
    """After the seal a call gets the dialect's 409 and a rejection of its session."""
    await stack.seal()
    status, body = await ask(stack, wire, stream=True)
    assert status == 409
    assert wire.error_of(json.loads(body))[1]
    await stack.until(lambda: bool(stack.rejections))
    assert (stack.rejections[0].reason, stack.rejections[0].session_id) == ("sealed", "session-1")
    assert not stack.engine.requests


@both
async def test_nonsense_is_a_400(stack: Stack, wire: Wire) -> None:
    """A body that isn't the dialect's is refused before anything is started."""
    async with stack.http.post(stack.url(wire.path), data=b'{"messages": 3}') as response:
        assert response.status == 400
    await stack.until(lambda: bool(stack.rejections))
    assert (stack.rejections[0].reason, stack.rejections[0].session_id) == ("bad_request", "session-1")
    _, sealed = await stack.seal()
    assert sealed["last_seq"] == 0


async def test_a_body_that_doesnt_decode_is_a_400(stack: Stack) -> None:
    """A content-encoding that the body doesn't have is the client's error."""
    headers = {"content-encoding": "gzip"}
    async with stack.http.post(stack.url(WIRES[0].path), data=b"not gzip", headers=headers) as response:
        assert response.status == 400


@both
async def test_a_body_above_the_limit_is_a_413(make_stack: MakeStack, wire: Wire) -> None:
    """Too large a request is refused in the dialect's shape."""
    stack = await make_stack(max_request_bytes=1_000)
    await stack.open()
    status, body = await ask(stack, wire, stream=False, text="x" * 1_500)
    assert status == 413
    assert "limit of 1000" in wire.error_of(json.loads(body))[1]


async def test_unknown_paths_go_nowhere(stack: Stack) -> None:
    """A path that no dialect has is a 404; the tap behind the proxy can't be reached through it."""
    for path in ("/v1/embeddings", "/call", "/generate"):
        async with stack.http.post(stack.url(path), json={}) as response:
            assert response.status == 404
    await stack.until(lambda: len(stack.rejections) == 3)
    assert {r.reason for r in stack.rejections} == {"unknown_endpoint"}
    assert not stack.engine.requests


async def test_the_tap_serves_nobody_else(stack: Stack) -> None:
    """Without the process' token the tap answers 403, whatever call is named."""
    url = f"http://127.0.0.1:{stack.proxy.tap.port}/call"
    headers = {"x-polynya-call": ids.completion_id(stack.lease_id, 1, 1), "x-polynya-tap": "guess"}
    async with stack.http.post(url, headers=headers) as response:
        assert response.status == 403


@both
async def test_a_step_that_crashes_fails_closed(stack: Stack, wire: Wire) -> None:
    """A bug in a step is a dialect-shaped 500 and a rejection; the request goes nowhere."""

    def crash(*_: object) -> list[int]:
        raise RuntimeError("a bug")

    stack.proxy._renderer.render = crash  # type: ignore[method-assign, assignment]
    status, body = await ask(stack, wire, stream=True)
    assert status == 500
    assert wire.error_of(json.loads(body))[1]
    assert "a bug" not in body
    await stack.until(lambda: bool(stack.rejections))
    assert stack.rejections[0].reason == "internal"
    assert not stack.engine.requests


async def test_a_flood_of_rejections_is_counted_not_kept(stack: Stack) -> None:
    """Above the rate rejections are suppressed, and a later one says how many."""
    recorder = stack.proxy.recorder
    facts = {"status": 401, "dialect": "", "secret": None, "session_id": "", "method": "GET", "path": "/", "host": ""}
    for _ in range(500):
        recorder.reject(reason="unknown_secret", **facts)
    recorder._rejections._tokens = 5.0
    recorder.reject(reason="unknown_secret", **facts)
    assert recorder.counts["rejected"] == 501
    await stack.until(lambda: any(r.details.get("suppressed_before") for r in stack.rejections))
    await stack.until(lambda: stack.proxy.spool.relay.unacked == 0)
    kept = len(stack.rejections)
    told = sum(r.details.get("suppressed_before", 0) for r in stack.rejections)
    assert kept + told == 501
    assert len({r.rejection_id for r in stack.rejections}) == kept


async def test_a_request_that_meets_a_seal_is_refused_not_lost(stack: Stack) -> None:
    """Between authorisation and the call's number the lease may be sealed: 409, no number is spent."""
    lease = stack.proxy.recorder.book.find(stack.lease_id, 1)
    assert lease is not None
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    original = stack.proxy._renderer.render

    def slow(*args: object) -> list[int]:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(5.0)
        return original(*args)  # type: ignore[arg-type]

    stack.proxy._renderer.render = slow  # type: ignore[method-assign]
    asking = asyncio.create_task(ask(stack, WIRES[0], stream=False))
    await stack.until(lambda: True)
    await asyncio.sleep(0.1)
    sealing = asyncio.create_task(stack.seal())
    await stack.until(lambda: lease.state != "open")
    gate.set()
    status, _ = await asking
    assert status == 409
    _, sealed = await sealing
    assert sealed["last_seq"] == 0
