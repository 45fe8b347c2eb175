"""The record boundary: nothing raises, nothing is lost, and a partition stops only at what it can't know."""

from __future__ import annotations

import pytest

from bus import BusUnavailableError, DeadLetters, Delivery
from bus.memory import MemoryBus
from schemas.codec import encode
from schemas.records import Reward
from stream_processors import intake as module
from stream_processors.intake import Intake

RECORD = Reward(session_id="s", value=1.0)
UNKNOWN = b"\x00" + (9999).to_bytes(4, "big") + b"body"


def at(offset: int, value: bytes | None = None, *, partition: int = 0, is_tombstone: bool = False) -> Delivery:
    value = encode(RECORD).value if value is None else value
    return Delivery("reward.assigned", partition, offset, 0, b"s", b"" if is_tombstone else value, (), is_tombstone)


class Handler:
    """Notes what it gets; raises what it is told to, once each."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.seen: list[tuple[int, int]] = []

    async def __call__(self, delivery: Delivery, raw: bytes) -> None:
        assert raw == delivery.value
        self.seen.append((delivery.partition, delivery.offset))
        if self.errors:
            raise self.errors.pop(0)


def make(bus: MemoryBus, handler: Handler) -> Intake:
    return Intake(handler, bus.blobs, DeadLetters(bus, "joiner"))


async def test_a_good_record_is_handled_and_done(memory_bus: MemoryBus) -> None:
    """The ordinary case; a tombstone has nothing to handle and is done, too."""
    handler = Handler()
    intake = make(memory_bus, handler)
    assert await intake.take(at(0))
    assert await intake.take(at(1, is_tombstone=True))
    assert (handler.seen, intake.health.handled, intake.health.buried) == ([(0, 0)], 2, 0)


async def test_a_retriable_error_is_tried_again_until_it_goes(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record isn't done before it is handled; the health tells while it waits."""
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.001)
    handler = Handler(BusUnavailableError("gone"), TimeoutError())
    intake = make(memory_bus, handler)
    assert await intake.take(at(0))
    assert handler.seen == [(0, 0)] * 3
    assert intake.problems == {}


async def test_what_can_never_be_handled_is_buried(memory_bus: MemoryBus) -> None:
    """A bug in a handler, or bytes that are no record: the dead letter has them, the intake goes on."""
    handler = Handler(ValueError("boom"))
    intake = make(memory_bus, handler)
    assert await intake.take(at(0))
    assert await intake.take(at(1, b"no avro"))
    assert await intake.take(at(2))
    dead = memory_bus.records("reward.assigned.joiner.dead")
    assert [(d.value, d.headers["dead_offset"]) for d in dead] == [(at(0).value, b"0"), (b"no avro", b"1")]
    assert (intake.health.buried, intake.health.handled) == (2, 1)


async def test_an_unknown_schema_holds_its_partition(memory_bus: MemoryBus) -> None:
    """Nothing behind it is taken, other partitions are; read again, the same record is met again."""
    handler = Handler()
    intake = make(memory_bus, handler)
    assert not await intake.take(at(5, UNKNOWN))
    assert not await intake.take(at(6))
    assert await intake.take(at(0, partition=1))
    assert not await intake.take(at(5, UNKNOWN))
    assert handler.seen == [(1, 0)]
    (problem,) = intake.problems.values()
    assert (problem.schema_id, problem.offset, problem.reason) == (9999, 5, "unknown_schema")
    assert "9999" in problem.text
    assert not intake.has_learnt()
    assert memory_bus.records("reward.assigned.joiner.dead") == []


async def test_a_registry_that_has_learnt_is_noticed(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is time to read the held partition again."""
    intake = make(memory_bus, Handler())
    assert not intake.has_learnt()
    await intake.take(at(5, UNKNOWN))
    known = dict(module.registry.frozen_schemas())

    class Registry:
        def __call__(self) -> dict[int, object]:
            return {**known, 9999: object()}

        def cache_clear(self) -> None:
            pass

    monkeypatch.setattr(module.registry, "frozen_schemas", Registry())
    assert intake.has_learnt()
