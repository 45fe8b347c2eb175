"""Drives a processor over the in-memory bus as Faust does on Kafka: at least once, tables with changelogs, crashes."""

from __future__ import annotations

import random
from collections.abc import Callable

from bus import Delivery
from bus.memory import MemoryBus
from stream_processors.app import Processor
from stream_processors.service import intake_of


class JournalTable(dict[bytes, bytes]):
    """A table whose writes are journalled like a changelog: after a crash any prefix since the last commit may be there."""

    def __init__(self, journal: list[tuple[bytes, bytes | None]] | None = None) -> None:
        super().__init__()
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.committed = 0
        for key, value in journal or []:
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        super().__setitem__(key, value)
        self.journal.append((key, value))

    def __delitem__(self, key: bytes) -> None:
        super().__delitem__(key)
        self.journal.append((key, None))


class Driven:
    """One processor on a memory bus; `make` builds it, again after each crash."""

    def __init__(self, bus: MemoryBus, make: Callable[[MemoryBus], Processor], seed: int = 0) -> None:
        self.bus = bus
        self.make = make
        self.random = random.Random(seed)
        self.tables: dict[str, JournalTable] = {}
        self.position: dict[tuple[str, int], int] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self._start()

    def _start(self) -> None:
        self.processor = self.make(self.bus)
        self.tables = self.tables or {name: JournalTable() for name in self.processor.table_names}
        self.processor.bind(dict(self.tables))
        self.intake = intake_of(self.bus, self.processor)

    def waiting(self) -> list[Delivery]:
        """The next record of every partition that has one."""
        fronts: list[Delivery] = []
        for topic in self.processor.topics:
            by_partition: dict[int, Delivery] = {}
            for d in self.bus.records(topic):
                place = (topic, d.partition)
                if d.offset >= self.position.get(place, 0) and d.partition not in by_partition:
                    by_partition[d.partition] = d
            fronts += by_partition.values()
        return fronts

    async def step(self) -> bool:
        """Take one record, of a partition chosen by chance; False when there is none that isn't held."""
        fronts = self.waiting()
        self.random.shuffle(fronts)
        for delivery in fronts:
            if await self.intake.take(delivery):
                self.position[delivery.topic, delivery.partition] = delivery.offset + 1
                return True
        return False

    async def catch_up(self, *, crash_rate: float = 0.0) -> None:
        """Take everything; crash (before a commit) and commit by chance."""
        while await self.step():
            chance = self.random.random()
            if chance < crash_rate:
                self.crash()
            elif chance < 0.5:
                self.commit()

    def commit(self) -> None:
        """What was taken isn't delivered again; Faust flushes the changelogs first."""
        self.committed = dict(self.position)
        for table in self.tables.values():
            table.committed = len(table.journal)

    def crash(self) -> None:
        """As after kill -9: back to the committed offsets, each table cut somewhere behind its committed writes."""
        for name, table in self.tables.items():
            cut = self.random.randint(table.committed, len(table.journal))
            restored = JournalTable(table.journal[:cut])
            restored.journal = table.journal[:cut]
            restored.committed = table.committed
            self.tables[name] = restored
        self.position = dict(self.committed)
        self._start()
