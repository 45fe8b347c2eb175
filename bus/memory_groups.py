"""Consumer groups of the bus in memory: who has which partition, and what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from bus.deliveries import Delivery
from bus.lane import RebalanceListener
from bus.partition_worker import Partition


class MemoryLog(Protocol):
    """What groups need of the bus in memory."""

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """The next offset of each partition."""
        ...

    def end_of(self, partition: Partition) -> int:
        """The next offset of one partition."""
        ...

    async def fetch(self, offsets: Mapping[Partition, int], timeout_s: float) -> dict[Partition, list[Delivery]]:
        """What lies at and after these offsets, or nothing after `timeout_s`."""
        ...


class Group:
    """A consumer group: its members, who has what, and what is committed."""

    def __init__(self, bus: MemoryLog) -> None:
        self.bus = bus
        self.committed: dict[Partition, int] = {}
        self._members: list[MemoryGroupSource] = []
        self._rebalancing = asyncio.Lock()

    async def join(self, member: MemoryGroupSource) -> None:
        """Deal anew with one member more."""
        async with self._rebalancing:
            await self._revoke_all()
            self._members.append(member)
            await self._assign_all()

    async def leave(self, member: MemoryGroupSource) -> None:
        """Deal anew with one member fewer."""
        async with self._rebalancing:
            if member in self._members:
                self._members.remove(member)
                await self._revoke_all()
                await self._assign_all()

    async def _revoke_all(self) -> None:
        for member in self._members:
            await member.give_up()

    async def _assign_all(self) -> None:
        # By ranges of each topic, like the assignor on Kafka: partition n of every topic goes to one member.
        for place, member in enumerate(self._members):
            mine = []
            for topic in member.topics:
                count = len(await self.bus.end_offsets(topic))
                low, high = (count * i // len(self._members) for i in (place, place + 1))
                mine += [(topic, n) for n in range(low, high)]
            await member.receive({p: self.committed.get(p, 0) for p in mine})


class MemoryGroupSource:
    """A member of a group in memory; see `GroupSource`."""

    def __init__(self, group: Group, topics: Sequence[str]) -> None:
        self._group = group
        self.topics = list(topics)
        self._at: dict[Partition, int] = {}
        self._listener: RebalanceListener | None = None

    async def open(self, listener: RebalanceListener) -> None:
        """Join; the members that are there give up what they have first."""
        self._listener = listener
        await self._group.join(self)

    async def poll(self, partitions: Collection[Partition], timeout_s: float) -> Mapping[Partition, list[Delivery]]:
        """Records of these partitions from where this member stands."""
        dealt = self._at
        found = await self._group.bus.fetch({p: dealt[p] for p in partitions if p in dealt}, timeout_s)
        if self._at is not dealt:
            return {}  # dealt anew meanwhile: every position went back to what is committed
        for partition, deliveries in found.items():
            if deliveries:
                self._at[partition] = deliveries[-1].offset + 1
        return found

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Remember the next offsets; only the owner may."""
        self._group.committed.update({p: offset for p, offset in offsets.items() if p in self._at})

    def end_of(self, partition: Partition) -> int | None:
        """The end of the partition's log."""
        return self._group.bus.end_of(partition)

    async def close(self) -> None:
        """Leave; the others share what was ours."""
        await self._group.leave(self)

    async def give_up(self) -> None:
        """Called by the group before it deals anew."""
        if self._listener is not None:
            await self._listener.revoked(list(self._at))
        self._at = {}

    async def receive(self, offsets: dict[Partition, int]) -> None:
        """Called by the group with what is ours from now on."""
        self._at = offsets
        if self._listener is not None:
            await self._listener.assigned(list(offsets))
