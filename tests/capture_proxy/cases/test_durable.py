"""What must not get lost: large records, the last call before a seal, a sink that fails; and what all dialects record alike."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from bus.claims import CLAIM_CHECK_BYTES
from bus.settings import MAX_RECORD_BYTES
from schemas import arrays, ids
from schemas.records import CompletionRecord, CompletionState
from tests.capture_proxy.conftest import ADMIN_KEY, Stack
from tests.capture_proxy.test_hold_back import Victim
from tests.capture_proxy.test_service import ask
from tests.capture_proxy.wire import WIRES

MakeStack = Callable[..., Awaitable[Stack]]
CHAT = WIRES[0]


async def test_b136_a_record_larger_than_the_broker_takes(make_stack: MakeStack) -> None:
    """120k prompt ids: the log holds a small reference, the record is whole behind it; nothing is cut or dropped."""
    stack = await make_stack(context_length=1_000_000)
    await stack.open()
    stack.engine.script = lambda *_: "y" * 2_000
    assert (await ask(stack, CHAT, stream=False, text="x" * 400_000, max_tokens=3_000))[0] == 200
    await stack.until(lambda: bool(stack.deliveries))
    held = stack.bus.records("capture.completions")
    assert all(len(d.value) <= CLAIM_CHECK_BYTES <= MAX_RECORD_BYTES for d in held if d.value[:1] == b"\0")
    [record] = [r async for r in whole_calls(stack)]
    assert record.prompt_len > 400_000
    assert arrays.unpack_ids(record.suffix_ids).size == record.prompt_len
    assert arrays.unpack_ids(record.output_ids).size == arrays.unpack_logprobs(record.logprobs).size == 2_001
    assert record.trainable


async def whole_calls(stack: Stack) -> Any:
    """The calls on the log, read as a consumer reads them."""
    async for delivery in stack.bus.tail(["capture.completions"], start="earliest", until_end=True):
        if isinstance(record := delivery.decode(), CompletionRecord):
            yield record


async def test_b137_a_large_record_beside_small_ones(make_stack: MakeStack) -> None:
    """Sent together, each arrives: the size is dealt with before anything is handed to the client of Kafka."""
    stack = await make_stack(context_length=2_000_000)
    await stack.open()
    stack.bus.acks.clear()  # so that all of them stand in line at once
    sizes = [10, 10, 900_000, 10]
    answers = await asyncio.gather(*(ask(stack, CHAT, stream=True, text="z" * size) for size in sizes))
    assert [status for status, _ in answers] == [200] * 4
    stack.bus.acks.set()
    _, sealed = await stack.seal()
    assert sealed["last_seq"] == 4
    records = [r async for r in whole_calls(stack)]
    assert sorted(r.call_seq for r in records) == [1, 2, 3, 4]
    assert stack.proxy.spool.relay.poisoned == 0


async def test_b139_a_seal_waits_for_the_call_that_runs(stack: Stack) -> None:
    """`finish` while call 5 streams: its record, its delivery and only then the seal stand on the log, in this order."""
    for _ in range(4):
        await ask(stack, CHAT, stream=True)
    stack.engine.pause_at = 3
    stack.engine.go.clear()
    fifth = asyncio.create_task(ask(stack, CHAT, stream=True))
    await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
    sealing = asyncio.create_task(stack.seal())
    done, _ = await asyncio.wait({sealing}, timeout=0.3)
    assert not done
    stack.engine.go.set()
    assert CHAT.read_stream((await fifth)[1]).is_over
    _, sealed = await sealing
    assert sealed["last_seq"] == 5
    kinds = [type(d.decode()).__name__ for d in stack.bus.records("capture.completions")]
    assert kinds[-3:] == ["CompletionRecord", "CompletionDelivery", "SessionSealed"]


async def test_b139_a_proxy_killed_before_the_record(make_stack: MakeStack, tmp_path: Path) -> None:
    """The intent stood on the disk before the engine had the call: an adopter makes it a failed one with its reason, then the seal."""
    stack = await make_stack(adopt_every_s=60)
    stack.engine.pause_at = 5
    stack.engine.go.clear()
    victim = await Victim.start(tmp_path, stack.engine.url)
    body = stack.open_body(session_id="session-k", secret_hash=ids.secret_hash("k"), lease_id="lease-k")
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with stack.http.post(f"{victim.admin}/leases/open", json=body, headers=headers) as response:
        assert response.status == 200
    asking = asyncio.create_task(stack.http.post(f"{victim.data}/s/k{CHAT.path}", json=CHAT.request()).__aenter__())
    await asyncio.wait_for(stack.engine.reached.wait(), 10.0)
    victim.kill()
    await victim.gone()
    with pytest.raises(aiohttp.ClientError):
        await asking
    await stack.proxy.adopter._adopt()
    await stack.until(lambda: bool(stack.seals))
    [record] = stack.calls
    assert (record.state, record.trainable, record.untrainable_reason) == (CompletionState.FAILED, False, "proxy_crash")
    assert (stack.seals[0].last_seq, stack.seals[0].reason) == (1, "proxy_crash")


async def test_b142_every_dialect_records_the_same(make_stack: MakeStack) -> None:
    """One conversation in four dialects, streamed and whole: eight records of the same prompt, each in accord with its answer."""
    stack = await make_stack()
    await stack.open()
    for wire in WIRES:
        for stream in (False, True):
            status, body = await ask(stack, wire, stream=stream)
            said = wire.read_stream(body) if stream else wire.read_whole(json.loads(body))
            assert (status, said.text) == (200, "Hello there.")
    await stack.until(lambda: len(stack.deliveries) == 8)
    prompts = {arrays.unpack_ids(c.suffix_ids).tobytes() for c in stack.calls}
    assert len(prompts) == 1
    assert np.frombuffer(prompts.pop(), np.int32).tolist() == stack.engine.requests[0]["input_ids"]
    for call in stack.calls:
        assert arrays.unpack_ids(call.output_ids).size == arrays.unpack_logprobs(call.logprobs).size == 13
        assert (call.text, call.finish_reason, call.trainable) == ("Hello there.", "stop", True)


async def test_b142_a_sink_that_fails_isnt_silent(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka takes nothing: the disk answers for it, and it arrives later. The disk neither: the call fails, it isn't served unseen."""
    stack = await make_stack(ack_wait_ms=1, commit_timeout_s=0.3)
    await stack.open()
    original = stack.bus.publish_raw

    async def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the sink is broken")

    monkeypatch.setattr(stack.bus, "publish_raw", broken)
    assert (await ask(stack, CHAT, stream=False))[0] == 200
    assert not stack.calls

    def no_disk(_fd: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    stack.fsync = no_disk
    status, body = await ask(stack, CHAT, stream=False)
    assert status in {500, 503}
    assert "record" in body
    monkeypatch.setattr(stack.bus, "publish_raw", original)
    await stack.until(lambda: any(c.call_seq == 1 and c.trainable for c in stack.calls))
