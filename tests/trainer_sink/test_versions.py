"""The timeline read along: owners' publications in order, through torn records and outages."""

from __future__ import annotations

import asyncio

from bus.memory import MemoryBus
from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.versions import TimelineFollower, Versions

POLICY = "p"
DEADLINE_S = 30.0


def event(kind: PolicyEventType, version: str = "", trainer: str = "", epoch: int = 0, at: int = 0) -> PolicyEvent:
    return PolicyEvent(policy_id=POLICY, type=kind, version=version, trainer_id=trainer, trainer_epoch=epoch, at=at)


def published(version: str, at: int = 0) -> PolicyEvent:
    return event(PolicyEventType.PUBLISHED, version, at=at)


async def newest(versions: Versions, version: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while versions.order(POLICY).newest != version:
            await asyncio.sleep(0.01)


def test_only_the_owners_publications_count() -> None:
    """A superseded trainer's late word makes nobody's groups stale; a repeated event is the same one."""
    versions = Versions()
    facts = [
        event(PolicyEventType.CLAIMED, trainer="a", at=1),
        event(PolicyEventType.PUBLISHED, "1", "a", 0, at=2),
        event(PolicyEventType.PUBLISHED, "1", "a", 0, at=2),
        event(PolicyEventType.CLAIMED, trainer="b", at=3),
        event(PolicyEventType.PUBLISHED, "2", "a", 0, at=4),  # frozen, and woke up
        event(PolicyEventType.PAUSED, "3", "b", 3, at=5),
        event(PolicyEventType.PUBLISHED, "3", "b", 3, at=6),
    ]
    for offset, fact in enumerate(facts):
        versions.take(fact, offset)
    order = versions.order(POLICY)
    assert order.newest == "3"
    assert order.lag("1", "3") == 1
    assert versions.order("another").newest == ""


async def test_the_past_is_read_first_and_then_what_comes(memory_bus: MemoryBus) -> None:
    """Torn records on the way are passed over: the proxies set them aside."""
    await memory_bus.publish(published("1", at=1))
    partition = await memory_bus.partition_for("policy.timeline", POLICY)
    await memory_bus.publish_raw("policy.timeline", POLICY.encode(), b"no frame", partition=partition)
    await memory_bus.publish(published("2", at=2))
    versions = Versions()
    follower = TimelineFollower(memory_bus, versions, POLICY)
    await follower.catch_up()
    assert versions.order(POLICY).newest == "2"
    along = asyncio.create_task(follower.run())
    try:
        await memory_bus.publish(published("3", at=3))
        await newest(versions, "3")
        assert versions.order(POLICY).lag("1", "3") == 2
    finally:
        along.cancel()
        await asyncio.gather(along, return_exceptions=True)


async def test_without_a_policy_all_are_followed(memory_bus: MemoryBus) -> None:
    """A trainer of several policies knows the order of each."""
    for policy in ("p", "q"):
        await memory_bus.publish(
            PolicyEvent(policy_id=policy, type=PolicyEventType.PUBLISHED, version=f"{policy}1", at=1)
        )
    versions = Versions()
    await TimelineFollower(memory_bus, versions, None).catch_up()
    assert [versions.order(policy).newest for policy in ("p", "q")] == ["p1", "q1"]
