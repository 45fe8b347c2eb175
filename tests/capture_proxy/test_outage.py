"""Kafka away, the spool full: the proxy serves as long as it can record, and says so when it can't."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from capture_proxy.spool.frames import Kind, pack
from schemas.records import CompletionDelivery, CompletionRecord, SessionOpened, SessionSealed
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.test_service import ask, both
from tests.capture_proxy.wire import WIRES, Wire

MakeStack = Callable[..., Awaitable[Stack]]


async def test_calls_go_on_without_kafka_and_arrive_in_order_later(stack: Stack) -> None:
    """With no acks the finishes are released by the fsync; when Kafka is back, everything arrives in the order it happened."""
    stack.bus.acks.clear()
    for stream in (True, False, True):
        status, _ = await ask(stack, WIRES[0], stream=stream)
        assert status == 200
    _, sealed = await stack.seal()
    assert sealed["last_seq"] == 3
    assert not stack.calls
    stack.bus.acks.set()
    await stack.until(lambda: bool(stack.seals))
    kinds: list[Any] = [d.decode() for d in stack.bus.records("capture.completions")]
    assert isinstance(kinds[0], SessionOpened)
    assert isinstance(kinds[-1], SessionSealed)
    assert [r.call_seq for r in kinds if isinstance(r, CompletionRecord)] == [1, 2, 3]
    for seq in (1, 2, 3):
        where = {type(r): i for i, r in enumerate(kinds) if getattr(r, "call_seq", 0) == seq}
        assert where[CompletionRecord] < where[CompletionDelivery]


@both
async def test_above_its_limit_the_spool_refuses_calls_before_the_engine(make_stack: MakeStack, wire: Wire) -> None:
    """Kafka down and the limit reached: 503 in the dialect's shape, nothing reaches the engine; it ends with Kafka's return."""
    stack = await make_stack(spool_limit_bytes=2_000, ack_wait_ms=1)
    await stack.open()
    stack.bus.acks.clear()
    asked = 0
    while True:
        status, body = await ask(stack, wire, stream=False)
        if status != 200:
            break
        asked += 1
        assert asked < 50
    assert status in (503, 529)
    assert "can't be recorded" in body
    assert len(stack.engine.requests) == asked
    health, report = await stack.admin("GET", "/health")
    assert (health, report["is_healthy"]) == (503, False)
    stack.bus.acks.set()
    await stack.until(lambda: stack.proxy.spool.relay.unacked == 0)
    status, _ = await ask(stack, wire, stream=False)
    assert status == 200
    assert (await stack.admin("GET", "/health"))[0] == 200


async def test_a_full_disk_refuses_new_calls_but_not_the_record_of_a_running_one(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC in mid-call: the record goes to Kafka from memory and the reply is released; new calls are refused meanwhile."""
    stack.engine.pause_at = 5
    stack.engine.go.clear()
    asking = asyncio.create_task(ask(stack, WIRES[0], stream=True))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        status, body = await ask(stack, WIRES[0], stream=False)
        assert status == 503
        assert "No space left" in body
        stack.engine.go.set()
        status, body = await asking
        assert status == 200
        assert "[DONE]" in body
        await stack.until(lambda: len(stack.deliveries) == 1)
    _, sealed = await stack.seal()
    assert sealed["last_seq"] == 1
    await stack.until(lambda: bool(stack.seals))
    assert [r.call_seq for r in stack.calls] == [1]


async def test_a_restart_relays_what_the_predecessor_could_not(make_stack: MakeStack) -> None:
    """A proxy that stops while Kafka is down leaves its spool; the next one on the machine sends it, once."""
    first = await make_stack(stop_relay_s=0.1)
    await first.open()
    await ask(first, WIRES[0], stream=False)
    await first.until(lambda: bool(first.deliveries))
    first.bus.acks.clear()
    await ask(first, WIRES[0], stream=False)
    await first.proxy.stop()
    left = list((first.root / "spool").iterdir())
    assert len(left) == 1
    first.bus.acks.set()
    second = await make_stack()
    await second.until(lambda: bool(second.seals))
    assert [r.call_seq for r in second.calls] == [1, 2]
    assert second.seals[0].last_seq == 2
    assert second.seals[0].reason == "proxy_stopped"
    await second.until(lambda: not left[0].exists())


@pytest.mark.parametrize("value", [b"\0\0\0\xff\xffa newer schema", b"junk"])
async def test_an_unreadable_spool_stops_nobody(make_stack: MakeStack, tmp_path: Path, value: bytes) -> None:
    """The proxy starts and takes calls, health names the spool, and it stays on the disk for whoever can read it."""
    dead = tmp_path / "spool" / "dead"
    dead.mkdir(parents=True)
    (dead / "00000001.seg").write_bytes(pack(Kind.RECORD, 1, value))
    stack = await make_stack()
    await stack.open()
    assert (await ask(stack, WIRES[0], stream=False))[0] == 200
    _, health = await stack.admin("GET", "/health")
    assert list(health["spool"]["unreadable"]) == ["dead"]
    assert (dead / "00000001.seg").exists()
