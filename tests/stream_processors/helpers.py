"""What the tests of the stream processors share: records in the toy setting of small token ids, and a log reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bus import Bus
from schemas import ids
from schemas.arrays import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from schemas.records import CompletionDelivery, CompletionRecord, CompletionState, Record, Trace

SESSION = "session-1"
LEASE = ids.lease_id(SESSION, 1)
E = 99


def call(
    seq: int,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    writer: int = 1,
    lease: str = LEASE,
    session: str = SESSION,
    logprobs: Sequence[float] | None = None,
    **fields: Any,
) -> CompletionRecord:
    """A finished call with the whole prompt; every sampled token has log-probability -(its id)/100 unless given."""
    values = [-i / 100 for i in output] if logprobs is None else logprobs
    base: dict[str, Any] = {
        "session_id": session,
        "policy_id": "policy",
        "lease_id": lease,
        "writer": writer,
        "call_seq": seq,
        "completion_id": ids.completion_id(lease, writer, seq),
        "state": CompletionState.FINISHED,
        "suffix_ids": pack_ids(prompt),
        "prompt_len": len(prompt),
        "output_ids": pack_ids(output),
        "logprobs": pack_logprobs(values),
        "logprobs_mode": "raw",
        "finish_reason": "stop",
        "request_digest": f"request-{seq}",
        "text": "".join(f"<{i}>" for i in output),
        "trainable": True,
    }
    return CompletionRecord(**{**base, **fields})


def delivery(
    seq: int, *, delivered: bool = True, writer: int = 1, lease: str = LEASE, session: str = SESSION
) -> CompletionDelivery:
    """The delivery fact of a call."""
    return CompletionDelivery(
        session_id=session,
        lease_id=lease,
        writer=writer,
        call_seq=seq,
        completion_id=ids.completion_id(lease, writer, seq),
        delivered=delivered,
    )


def delivered(*calls: CompletionRecord) -> list[CompletionRecord | CompletionDelivery]:
    """Calls and the facts that their replies arrived."""
    facts: list[CompletionRecord | CompletionDelivery] = []
    for c in calls:
        facts += [c, delivery(c.call_seq, writer=c.writer, lease=c.lease_id, session=c.session_id)]
    return facts


def row_of(trace: Trace) -> tuple[list[int], list[int], str]:
    """A trace as (prompt, response, mask as a string of 0 and 1)."""
    mask = "".join(str(b) for b in trace.loss_mask)
    return unpack_ids(trace.prompt_ids).tolist(), unpack_ids(trace.response_ids).tolist(), mask


def logprobs_of(trace: Trace) -> list[float]:
    """A trace's log-probabilities, rounded for comparison."""
    return [round(float(x), 4) for x in unpack_logprobs(trace.logprobs)]


async def wait_for(
    bus: Bus, topic: str, wanted: Callable[[Record], bool], *, timeout_s: float = 30.0, beside: bytes | None = None
) -> Record:
    """The first record on a topic, from its beginning, that is wanted; the value `beside` is no record and is passed over."""
    async with asyncio.timeout(timeout_s):
        async for found in bus.tail([topic]):
            if found.value == beside:
                continue
            record = found.decode()
            if wanted(record):
                return record
    raise AssertionError("unreachable: the log never ends")


async def read_all(bus: Bus, topic: str) -> list[Record]:
    """Everything that stands on a topic now."""
    return [d.decode() async for d in bus.tail([topic], until_end=True)]
