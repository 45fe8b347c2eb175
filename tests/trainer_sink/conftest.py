"""What the sink's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bus.memory import MemoryBus
    from tests.trainer_sink.policies.fake_engine import FakeEngine


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    """A log in memory; each topic has two partitions at most."""
    from bus.memory import MemoryBus

    async with MemoryBus(partitions=2) as bus:
        yield bus


@pytest.fixture
async def engine(bus: MemoryBus) -> AsyncIterator[FakeEngine]:
    """The one engine of POLICY, as the timeline says."""
    from schemas.records import PolicyEvent, PolicyEventType
    from tests.trainer_sink.policies.fake_engine import FakeEngine, serving
    from tests.trainer_sink.scored import POLICY

    async with serving(FakeEngine()) as engine:
        added = PolicyEventType.ENGINE_ADDED
        await bus.publish(PolicyEvent(policy_id=POLICY, type=added, engine_url=engine.url, engine_kind="cpu"))
        yield engine
