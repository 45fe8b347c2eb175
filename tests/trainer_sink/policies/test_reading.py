"""Reading the timeline to its end, again and again."""

from __future__ import annotations

import struct

import pytest

from bus.memory import MemoryBus
from schemas import UnknownSchemaIdError
from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.policies import TimelineReader, read_timelines
from trainer_sink.policies.reading import TOPIC


async def claim(bus: MemoryBus, policy_id: str, trainer_id: str, at: int = 0) -> int:
    """A claim's offset."""
    event = PolicyEvent(policy_id=policy_id, type=PolicyEventType.CLAIMED, trainer_id=trainer_id, at=at)
    return (await bus.publish(event)).offset


async def test_each_reading_holds_what_came_before_it(bus: MemoryBus) -> None:
    """All policies, whatever their partition; a later reading adds what is new."""
    reader = TimelineReader(bus)
    assert (await reader.to_end()).of("a").owner is None
    epochs = {policy: await claim(bus, policy, "one") for policy in ("a", "b", "c", "d")}
    found = await reader.to_end()
    for policy, epoch in epochs.items():
        owner = found.of(policy).owner
        assert owner is not None
        assert owner.epoch == epoch
    later = await claim(bus, "a", "two", at=1)
    owner = (await reader.to_end()).of("a").owner
    assert owner is not None
    assert (owner.trainer_id, owner.epoch) == ("two", later)
    assert len(found.of("b").claims) == 1


async def test_what_cant_be_decoded_is_passed_over(bus: MemoryBus) -> None:
    """Garbage keeps no trainer from pushing."""
    await bus.publish_raw(TOPIC, b"a", b"no avro")
    epoch = await claim(bus, "a", "one")
    owner = (await read_timelines(bus)).of("a").owner
    assert owner is not None
    assert owner.epoch == epoch


async def test_a_newer_schema_stops_the_reading(bus: MemoryBus) -> None:
    """It might be a claim: nobody may go on as if it weren't there, and the next reading meets it again."""
    await bus.publish_raw(TOPIC, b"a", struct.pack(">bI", 0, 9999) + b"x")
    reader = TimelineReader(bus)
    for _ in range(2):
        with pytest.raises(UnknownSchemaIdError):
            await reader.to_end()
