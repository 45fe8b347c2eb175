"""A session's calls read back whole, on memory and on the real Kafka."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus import Bus, KafkaBus, read_session, since_opening
from bus.memory import MemoryBus
from schemas import arrays, ids
from schemas.records import CompletionRecord, SessionOpened
from schemas.resolve import PARENT_MISSING, reply_message

LEASE = "lease"


def turn(seq: int, session_id: str = "s") -> CompletionRecord:
    """Call `seq` of a chain whose every turn adds one prompt id (its number), two sampled ids and one message; a delta from the second on."""
    before = [i for n in range(1, seq) for i in (n, 100 + n, 99)]
    parent = ids.completion_id(LEASE, 1, seq - 1)
    delta = {
        "parent_id": parent,
        "prefix_len": len(before),
        "prefix_digest": ids.digest(arrays.pack_ids(before)),
        "messages_prefix": 2 * (seq - 1),
    }
    return CompletionRecord(
        session_id=session_id,
        lease_id=LEASE,
        call_seq=seq,
        completion_id=ids.completion_id(LEASE, 1, seq),
        suffix_ids=arrays.pack_ids([seq]),
        prompt_len=len(before) + 1,
        output_ids=arrays.pack_ids([100 + seq, 99]),
        text=f"answer {seq}",
        messages=[{"role": "user", "content": f"question {seq}"}],
        tools=[{"name": "ls"}] if seq == 1 else [],
        tools_digest="d",
        **(delta if seq > 1 else {}),
    )


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def bus(request: pytest.FixtureRequest) -> Bus:
    """Both kinds."""
    found: Bus = request.getfixturevalue(f"{request.param}_bus")
    return found


async def publish(bus: MemoryBus | KafkaBus, *turns: CompletionRecord) -> list[int]:
    """Their offsets."""
    return [(await bus.publish(record)).offset for record in turns]


async def test_every_call_is_whole_from_any_offset(bus: MemoryBus) -> None:
    """From each call's own offset on: the same prompts, messages and tools as from the beginning; other sessions stay out."""
    opened = SessionOpened(session_id="s", lease_id=LEASE, opened_at=70_000)
    await bus.publish(opened)
    await publish(bus, turn(1, "other"))
    offsets = await publish(bus, *(turn(seq) for seq in range(1, 6)))
    for at, offset in enumerate(offsets):
        got = [c async for c in read_session(bus, "s", since=since_opening(opened), from_offset=offset)]
        assert [c.record.call_seq for c in got] == list(range(at + 1, 6))
        assert [c.delivery.offset for c in got] == offsets[at:]
        last = got[-1]
        assert arrays.unpack_ids(last.call.prompt()).tolist() == [i for n in range(1, 5) for i in (n, 100 + n, 99)] + [
            5
        ]
        assert last.call.messages() == [
            m for n in range(1, 5) for m in ({"role": "user", "content": f"question {n}"}, reply_message(turn(n)))
        ] + [{"role": "user", "content": "question 5"}]
        assert all(c.tools == [{"name": "ls"}] for c in got)


async def test_a_parent_that_comes_later_is_waited_for_and_a_lost_one_named(bus: MemoryBus) -> None:
    """A predecessor's spool may be relayed late; what never comes leaves a call with a problem, not a guess."""
    await publish(bus, turn(2), turn(1), turn(5))
    got = [c async for c in read_session(bus, "s")]
    assert [(c.record.call_seq, c.call.problem) for c in got] == [(1, ""), (2, ""), (5, PARENT_MISSING)]


async def test_a_checkpoint_needs_nothing_before_it(bus: MemoryBus) -> None:
    """A whole record and what builds on it resolve although the session's start is gone."""
    whole = turn(3)
    before = [i for n in range(1, 3) for i in (n, 100 + n, 99)]
    checkpoint = replace(
        whole,
        is_checkpoint=True,
        prefix_len=0,
        prefix_digest="",
        messages_prefix=0,
        suffix_ids=arrays.pack_ids([*before, 3]),
    )
    await publish(bus, checkpoint, turn(4))
    got = [c async for c in read_session(bus, "s")]
    assert [(c.record.call_seq, c.call.problem, c.call.prompt_len) for c in got] == [(3, "", 7), (4, "", 10)]
