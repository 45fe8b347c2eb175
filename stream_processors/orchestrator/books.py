"""The orchestrator's tables of sessions and groups, and the part of them that time can still do something to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, Generic, TypeVar

import structlog

from bus import Delivery
from schemas.records import GroupEvent, SessionEvent
from schemas.records import GroupEventType as GroupFact
from schemas.records import SessionEventType as Fact
from stream_processors.app import Table, drop
from stream_processors.orchestrator import core
from stream_processors.orchestrator.groups import core as groups_core
from stream_processors.orchestrator.groups.row import GroupRow
from stream_processors.orchestrator.groups.states import GroupStage
from stream_processors.orchestrator.pending import PENDING_MS
from stream_processors.orchestrator.row import SessionRow

_log = structlog.get_logger(__name__)

TOGETHER: Final = 200
"""Facts about forgetting, and registrations, that are on their way at a time."""

R = TypeVar("R", SessionRow, GroupRow)


class _Books(Generic[R]):
    """A table of rows and one of the facts that registered them; the live rows of our own partitions in memory."""

    _read: Callable[[bytes], R]

    def __init__(self) -> None:
        self._rows: Table = {}
        self._firsts: Table = {}
        self._live: dict[str, R] | None = None
        self._over: dict[str, int] = {}
        """When those ended that are only remembered, in UTC epoch ms."""
        self._mine: frozenset[int] | None = None

    def bind(self, rows: Table, firsts: Table) -> None:
        """Take the tables of a fresh app."""
        self._rows, self._firsts = rows, firsts
        self._live = None

    def assigned(self, partitions: Collection[int]) -> None:
        """Rows of these partitions are ours from now on, and no others."""
        self._mine = frozenset(partitions)
        self._live = None

    def row(self, name: str) -> R | None:
        """The row of a session or group."""
        value = self._rows.get(name.encode())
        return None if value is None else self._read(value)

    def first(self, name: str) -> bytes | None:
        """The bytes of the fact that registered it, as long as anything may be published of it."""
        return self._firsts.get(name.encode())

    def live(self) -> dict[str, R]:
        """Our rows to which time can still do something."""
        if self._live is None:
            rows = [self._read(value) for value in list(self._rows.values())]
            self._live = {row.name: row for row in rows if self._is_mine(row)}
            self._over = {}
        for row in [row for row in self._live.values() if not row.is_live]:
            self._over[row.name] = row.moved_at
            del self._live[row.name]
        return self._live

    def overdue(self, now: int, keep_ms: int) -> list[str]:
        """What is remembered for longer than `keep_ms`, not too many at a time; again after a while."""
        over = [name for name, ended_at in self._over.items() if ended_at <= now - keep_ms][:TOGETHER]
        for name in over:
            self._over[name] = now - keep_ms + PENDING_MS
        return over

    def forget(self, name: str) -> bool:
        """Leave nothing of it; False when it still lives. True also when its row is gone already."""
        row = self.row(name)
        if row is not None and row.is_live:
            return False
        drop(self._rows, name.encode())
        drop(self._firsts, name.encode())
        self._over.pop(name, None)
        return True

    def _store(self, name: str, row: R) -> None:
        self._rows[name.encode()] = row.to_bytes()
        if self._live is not None and self._is_mine(row):
            self._live[name] = row

    def _is_mine(self, row: R) -> bool:
        """Whether a row's partition is ours (before anybody said which are, all)."""
        return self._mine is None or row.partition in self._mine


class SessionBooks(_Books[SessionRow]):
    """Tables `sessions` and `tasks`."""

    _read = staticmethod(SessionRow.from_bytes)

    def apply(self, fact: SessionEvent, delivery: Delivery, raw: bytes) -> SessionRow | None:
        """Change the row; the row whose outputs are due, None when the fact did nothing or everything was told."""
        name = fact.session_id
        row = self.row(name)
        if row is not None and delivery.offset <= row.version:
            # After a crash either table may have lost its last writes.
            if fact.type is Fact.REGISTERED and self.first(name) is None and not row.is_told:
                self._firsts[name.encode()] = raw
            return row if delivery.offset == row.version else None
        after = core.apply(row, fact, delivery.offset, delivery.timestamp_ms)
        if after is None or after is row:
            return None
        after = replace(after, partition=delivery.partition)
        if row is None:
            self._firsts[name.encode()] = raw
        self._store(name, after)
        if after.is_told and not after.is_live:
            drop(self._firsts, name.encode())  # nothing will be published of this session any more
        _log.info(
            "session.moved",
            session_id=name,
            fact=fact.type,
            move=after.move,
            stage=after.stage,
            attempt=after.attempt,
            status=after.status,
        )
        return after


class GroupBooks(_Books[GroupRow]):
    """Tables `groups` and `group_tasks`; the live ones wait for their admission, the closed ones for their retention."""

    _read = staticmethod(GroupRow.from_bytes)

    def apply(self, fact: GroupEvent, delivery: Delivery, raw: bytes) -> GroupRow | None:
        """Change the row; the row whose outputs are due, None when the fact did nothing."""
        name = fact.group_id
        row = self.row(name)
        if row is not None and delivery.offset <= row.version:
            if fact.type is GroupFact.REGISTERED and self.first(name) is None:
                self._firsts[name.encode()] = raw
            return row if delivery.offset == row.version else None
        after = groups_core.apply(row, fact, delivery.offset, delivery.timestamp_ms)
        if after is None or after is row:
            return None
        after = replace(after, partition=delivery.partition)
        if row is None:
            self._firsts[name.encode()] = raw
        self._store(name, after)
        _log.info("group.moved", group_id=name, fact=fact.type, move=after.move, stage=after.stage, **after.counts)
        return after

    def waiting(self) -> list[GroupRow]:
        """Our groups that wait for their admission."""
        return [row for row in self.live().values() if row.stage is GroupStage.WAITING]
