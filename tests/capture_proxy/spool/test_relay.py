"""The relay: in order per key, for ever, and what can't be sent doesn't block."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.deliveries import Position as BusPosition
from bus.errors import BusUnavailableError, RecordTooLargeError
from bus.settings import CLAIM_CHECK_BYTES
from capture_proxy.spool import relay as relay_module
from capture_proxy.spool.journal import Position
from capture_proxy.spool.relay import Entry, Relay
from schemas.codec import Encoded, decode, encode
from schemas.records import CompletionRecord, Record


class ScriptedBus:
    """Acknowledges after some turns of the loop, and fails as told."""

    def __init__(self, delays: list[int] | None = None, failures: int = 0) -> None:
        self.delays = delays or [0]
        self.failures = failures
        self.sent: list[Record] = []
        self.claimed: list[Encoded] = []
        self.dead: list[tuple[str, bytes | None]] = []
        self.dead_failures = 0
        self.in_flight: dict[str, int] = defaultdict(int)
        self.overlaps = 0
        self._count = 0

    async def publish(self, record: Record | Encoded, **_: Any) -> BusPosition:
        assert isinstance(record, Encoded)
        self.claimed.append(record)
        return BusPosition(record.topic, 0, 0)

    async def publish_raw(self, topic: str, key: bytes | None, value: bytes | None, *_: Any, **__: Any) -> BusPosition:
        if topic.endswith(".dead"):
            if self.dead_failures > 0:
                self.dead_failures -= 1
                raise BusUnavailableError("away")
            self.dead.append((topic, value))
            return BusPosition(topic, 0, 0)
        assert value is not None
        record = decode(value)
        assert key == record.key.encode()
        self._count += 1
        self.in_flight[record.key] += 1
        self.overlaps += self.in_flight[record.key] > 1
        try:
            for _turn in range(self.delays[self._count % len(self.delays)]):
                await asyncio.sleep(0)
            if self.failures > 0:
                self.failures -= 1
                raise BusUnavailableError("away")
            if isinstance(record, CompletionRecord) and record.text == "poison":
                raise RecordTooLargeError("too large")
            self.sent.append(record)
        finally:
            self.in_flight[record.key] -= 1
        return BusPosition(record.topic, 0, 0)

    def tail(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def record(session: int, seq: int, text: str = "") -> CompletionRecord:
    """A record that can be told from others."""
    return CompletionRecord(session_id=f"s{session}", lease_id="l", call_seq=seq, text=text)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40),
    st.lists(st.integers(0, 6), min_size=1, max_size=7),
    st.integers(0, 3),
    st.integers(1, 8),
)
def test_order_per_key_holds_whatever_acks_and_failures_do(
    items: list[tuple[int, bool]], delays: list[int], failures: int, width: int
) -> None:
    """Each session's entries arrive in order and one at a time, cached in memory or read back from the journal."""

    async def run() -> None:
        bus = ScriptedBus(delays, failures)
        stored: dict[int, bytes] = {}
        progress = 0

        def on_acked(_entry: Entry) -> None:
            nonlocal progress
            progress += 1

        relay = Relay(bus, lambda position: stored[position.seq], on_acked=on_acked, width=width)
        relay.start()
        entries = []
        for seq, (session, is_cached) in enumerate(items, start=1):
            item = record(session, seq)
            stored[seq] = encode(item).value
            entries.append(relay.add(encode(item) if is_cached else None, item.key, Position(seq, 1, 0, 10), 10))
        assert await relay.stop(5.0)
        assert all(entry.acked.is_set() for entry in entries)
        assert bus.overlaps == 0
        assert relay.unacked_bytes == 0
        assert relay.acked_through(len(items)) == len(items)
        assert progress == len(items)
        by_key: dict[str, list[int]] = defaultdict(list)
        for sent in bus.sent:
            assert isinstance(sent, CompletionRecord)
            by_key[sent.session_id].append(sent.call_seq)
        assert all(seqs == sorted(seqs) for seqs in by_key.values())
        assert sum(map(len, by_key.values())) == len(items)

    asyncio.run(run())


async def test_poison_is_set_aside_with_its_bytes() -> None:
    """What the bus can never take goes to the dead letters; its session goes on behind it."""
    bus = ScriptedBus()
    poison = record(1, 1, "poison")
    value = encode(poison).value
    relay = Relay(bus, lambda _position: value)
    relay.start()
    relay.add(encode(poison), poison.key, Position(1, 1, 0, 10), 10)
    relay.add(encode(record(1, 2)), "s1", Position(2, 1, 0, 10), 10)
    assert await relay.stop(5.0)
    assert [r.call_seq for r in bus.sent if isinstance(r, CompletionRecord)] == [2]
    assert bus.dead == [("capture.completions.proxy.dead", value)]
    assert relay.poisoned == 1


async def test_a_dead_letter_waits_for_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry counts as done only once its bytes are set aside: an outage in between loses nothing."""
    monkeypatch.setattr(relay_module, "_BACKOFF_S", (0.01,))
    bus = ScriptedBus()
    bus.dead_failures = 2
    relay = Relay(bus, lambda _position: b"")
    poison = record(1, 1, "poison")
    entry = relay.add(encode(poison), poison.key, Position(1, 1, 0, 10), 10)
    relay.start()
    async with asyncio.timeout(5.0):
        await entry.acked.wait()
    await relay.stop(1.0)
    assert bus.dead == [("capture.completions.proxy.dead", encode(poison).value)]
    assert bus.dead_failures == 0


async def test_an_outage_is_seen_and_forgotten() -> None:
    """While publishes fail the relay says so; afterwards it doesn't."""
    bus = ScriptedBus(failures=2)
    relay = Relay(bus, lambda _position: b"", width=1)
    relay.start()
    entry = relay.add(encode(record(1, 1)), "s1", Position(1, 1, 0, 10), 10)
    async with asyncio.timeout(5.0):
        while relay.is_healthy:
            await asyncio.sleep(0.001)
        assert "away" in relay.last_error
        assert relay.acked_through(1) == 0
        await entry.acked.wait()
    assert relay.is_healthy
    assert await relay.stop(1.0)


async def test_a_hanging_publish_is_given_up_and_tried_again() -> None:
    """A client that never answers doesn't hold its key for ever."""
    bus = ScriptedBus()
    hung = asyncio.Event()
    real = bus.publish_raw

    async def hang_once(*item: Any, **options: Any) -> BusPosition:
        if not hung.is_set():
            hung.set()
            await asyncio.Event().wait()
        return await real(*item, **options)

    bus.publish_raw = hang_once  # type: ignore[method-assign]
    relay = Relay(bus, lambda _position: b"", publish_timeout_s=0.05)
    relay.start()
    entry = relay.add(encode(record(1, 1)), "s1", Position(1, 1, 0, 10), 10)
    await asyncio.wait_for(entry.acked.wait(), 5.0)
    assert len(bus.sent) == 1
    await relay.stop(1.0)


async def test_a_large_record_goes_by_claim_check() -> None:
    """Above the bus's limit the bus makes a blob of its value; what comes from the journal has its headers again."""
    bus = ScriptedBus()
    large = record(1, 1, "x" * (CLAIM_CHECK_BYTES + 1))
    relay = Relay(bus, lambda _position: encode(large).value)
    relay.start()
    relay.add(encode(large), large.key, Position(1, 1, 0, 10), 10)
    relay.add(None, large.key, Position(2, 1, 0, 10), 10)
    assert await relay.stop(5.0)
    assert [claimed.value for claimed in bus.claimed] == [encode(large).value] * 2
    assert [dict(claimed.headers)["ce_id"] for claimed in bus.claimed] == [large.event_id.encode()] * 2
    assert bus.sent == []
