"""The fence: a claim against the end of the timeline, by a reading that isn't old."""

from __future__ import annotations

import pytest

from bus import BusUnavailableError
from bus.memory import MemoryBus
from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.policies import SupersededError, TimelineReader
from trainer_sink.policies.fence import MAX_AGE_S, Fence
from trainer_sink.policies.timeline import Claim


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Now."""
        return self.now_s


async def fenced(bus: MemoryBus, clock: Clock) -> Fence:
    """The fence of a trainer that has just claimed policy p."""
    event = PolicyEvent(policy_id="p", type=PolicyEventType.CLAIMED, trainer_id="old")
    position = await bus.publish(event)
    fence = Fence(TimelineReader(bus), "p", Claim("old", position.offset), clock=clock)
    await fence.check()
    return fence


async def test_a_process_that_was_frozen_reads_again_before_it_acts() -> None:
    """Between two steps of a push everything may have happened: time tells, also to a process that was stopped."""
    clock = Clock()
    async with MemoryBus(partitions=1) as bus:
        fence = await fenced(bus, clock)
        await bus.publish(PolicyEvent(policy_id="p", type=PolicyEventType.CLAIMED, trainer_id="new"))
        clock.now_s += MAX_AGE_S / 2
        await fence.fresh()  # the last reading is young: that much of a window stays open
        clock.now_s += MAX_AGE_S
        with pytest.raises(SupersededError, match="trainer new claimed it at epoch 1"):
            await fence.fresh()


async def test_a_reading_is_as_old_as_its_beginning() -> None:
    """A process that is frozen while it reads must not believe what it read before."""
    clock = Clock()

    class Slow(MemoryBus):
        """Each look at the ends takes long, the first two times."""

        looks = 0

        async def end_offsets(self, topic: str) -> dict[int, int]:
            found = await super().end_offsets(topic)
            self.looks += 1
            if self.looks in (2, 3):
                clock.now_s += MAX_AGE_S * 2
            return found

    async with Slow(partitions=1) as bus:
        fence = await fenced(bus, clock)
        clock.now_s += MAX_AGE_S * 2
        await fence.fresh()
        assert bus.looks == 4


async def test_a_claim_of_another_policy_is_nothing_to_it() -> None:
    """Two policies may share a partition, where the other's claim has the higher offset."""
    clock = Clock()
    async with MemoryBus(partitions=1) as bus:
        fence = await fenced(bus, clock)
        await bus.publish(PolicyEvent(policy_id="q", type=PolicyEventType.CLAIMED, trainer_id="other"))
        assert (await fence.check()).policy_id == "p"


async def test_a_log_that_is_too_slow_is_not_believed() -> None:
    """It ends with an error, and not with a guess or a wait for ever."""
    clock = Clock()

    class Slow(MemoryBus):
        """Each look at the ends takes too long."""

        async def end_offsets(self, topic: str) -> dict[int, int]:
            found = await super().end_offsets(topic)
            clock.now_s += MAX_AGE_S * 2
            return found

    async with Slow(partitions=1) as bus:
        fence = await fenced(bus, clock)
        with pytest.raises(BusUnavailableError, match="what it says may be old"):
            await fence.fresh()
