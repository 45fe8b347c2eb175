"""The writer of a policy's weights, against engines that only keep what they are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from schemas.records import PolicyEvent, PolicyEventType
from tests.trainer_sink.policies.fake_engine import FakeEngine, serving
from trainer_sink.policies import PolicyWriter, SupersededError

PATH = Path("/checkpoints/one")


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    """A cluster with a timeline of two partitions."""
    async with MemoryBus(partitions=2) as bus:
        yield bus


@pytest.fixture
async def engine(bus: MemoryBus) -> AsyncIterator[FakeEngine]:
    """One engine that serves policy p."""
    async with serving(FakeEngine()) as engine:
        await added(bus, engine)
        yield engine


async def added(bus: MemoryBus, engine: FakeEngine, policy_id: str = "p") -> None:
    """The engine serves the policy from now on."""
    await bus.publish(
        PolicyEvent(policy_id=policy_id, type=PolicyEventType.ENGINE_ADDED, engine_url=engine.url, engine_kind="cpu")
    )


async def events(bus: MemoryBus) -> list[PolicyEvent]:
    """The timeline's events of trainers."""
    found = [d.decode() async for d in bus.tail(["policy.timeline"], until_end=True)]
    return [e for e in found if isinstance(e, PolicyEvent) and e.trainer_id]


async def test_a_push_reaches_the_engine_and_is_published(bus: MemoryBus, engine: FakeEngine) -> None:
    """Pause, load, forget old keys and values, go on; the timeline says who published what after what."""
    async with PolicyWriter(bus, "p", "t") as writer:
        assert writer.version == "0"
        assert await writer.push(PATH, weights_digest="d1") == "1"
        assert await writer.push(PATH, weights_digest="d2") == "2"
        assert writer.version == "2"
    assert engine.asked[:5] == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/flush_cache",
        "/continue_generation",
        "/model_info",
    ]
    assert (engine.version, engine.path, engine.is_paused) == ("2", str(PATH), False)
    told = await events(bus)
    assert [e.type for e in told] == [PolicyEventType.CLAIMED] + 2 * [
        PolicyEventType.PAUSED,
        PolicyEventType.PUBLISHED,
        PolicyEventType.RESUMED,
    ]
    published = [e for e in told if e.type is PolicyEventType.PUBLISHED]
    assert [(e.version, e.parent_version, e.weights_digest) for e in published] == [("1", "0", "d1"), ("2", "1", "d2")]
    assert {e.trainer_epoch for e in published} == {writer.epoch}


async def test_a_later_claim_ends_an_earlier_writer(bus: MemoryBus, engine: FakeEngine) -> None:
    """The earlier one is refused before it touches an engine, and is told by whom; the later one counts on."""
    async with PolicyWriter(bus, "p", "old") as old:
        await old.push(PATH)
        async with PolicyWriter(bus, "p", "new") as new:
            assert new.epoch > old.epoch
            assert new.version == "1"
            before = list(engine.asked)
            with pytest.raises(SupersededError, match="trainer new claimed it") as refused:
                await old.push(PATH)
            assert (refused.value.by, refused.value.epoch) == ("new", new.epoch)
            assert engine.asked == before
            assert await new.push(PATH) == "2"
