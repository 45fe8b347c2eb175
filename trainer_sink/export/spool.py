"""The newest revision of every session on trajectory.scored, in a stable order, without holding them in memory.

Values are spooled to a temporary file while the log is read; the index in memory holds a few hundred bytes a session.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass
from typing import IO, Self

from bus.deliveries import Delivery
from bus.errors import is_retriable
from schemas.codec import decode
from schemas.records import Record, ScoredTrajectory
from trainer_sink.filters import GroupFilter
from trainer_sink.groups import Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept session: how it sorts, where it stands on the log and where in the spool."""

    task_id: str
    group_id: str
    index: int
    session_id: str
    source: Source
    revision: int
    traces: int
    at: int
    length: int

    @property
    def order(self) -> tuple[str, str, int, str]:
        """Task, group, index: the same log gives the same order, whatever order it was read in."""
        return (self.task_id, self.group_id, self.index, self.session_id)


class ScoredSpool:
    """Collects sessions from the log, then gives them back in order. Close it, or use it as a context manager."""

    def __init__(self, group_filter: GroupFilter) -> None:
        self._filter = group_filter
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="polynya-export-")  # noqa: SIM115 - `close` does
        self._entries: dict[str, Entry] = {}
        self.skipped: Counter[str] = Counter()
        """Sessions left out, by reason; records that repeat or were revised count as `duplicates` and `revised`."""
        self.records = 0
        """Everything that was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    async def fill(self, deliveries: AsyncIterable[Delivery]) -> None:
        """Take all of them. Raises what is retriable (an unknown schema id); counts what is unreadable."""
        async for delivery in deliveries:
            self.records += 1
            try:
                record: Record = delivery.decode()
                if isinstance(record, ScoredTrajectory):
                    _parse(record)
            except Exception as error:  # the record's boundary: an export counts poison, consumers set it aside
                if is_retriable(error):
                    raise
                self.skipped["unreadable"] += 1
                continue
            if isinstance(record, ScoredTrajectory):
                self._keep(record, delivery)
            else:
                self.skipped["unreadable"] += 1

    def _keep(self, scored: ScoredTrajectory, delivery: Delivery) -> None:
        spec = scored.spec
        if spec is None:
            self.skipped["spec_missing"] += 1
            return
        reason = self._filter.refuses_spec(spec, None) or self._filter.refuses_content([scored])
        if reason is not None:
            self.skipped[reason] += 1
            return
        held = self._entries.get(scored.session_id)
        if held is not None and scored.revision <= held.revision:
            self.skipped["duplicates"] += 1
            return
        if held is not None:
            self.skipped["revised"] += 1
        at = self._file.seek(0, 2)
        self._file.write(delivery.value)
        self._entries[scored.session_id] = Entry(
            task_id=scored.task_id,
            group_id=scored.group_id,
            index=spec.index,
            session_id=scored.session_id,
            source=Source(delivery.partition, delivery.offset),
            revision=scored.revision,
            traces=len(scored.trajectory.traces) if scored.trajectory else 0,
            at=at,
            length=len(delivery.value),
        )

    @property
    def entries(self) -> list[Entry]:
        """The kept sessions, in order."""
        return sorted(self._entries.values(), key=lambda e: e.order)

    def read(self) -> Iterator[tuple[Entry, ScoredTrajectory]]:
        """The kept sessions, in order, decoded one at a time."""
        for entry in self.entries:
            self._file.seek(entry.at)
            record = decode(self._file.read(entry.length))
            assert isinstance(record, ScoredTrajectory)
            yield entry, record


def _parse(scored: ScoredTrajectory) -> None:
    """Look at what is parsed only then; raises JsonTextError, which makes a record unreadable rather than stop the export at its row."""
    for trace in scored.trajectory.traces if scored.trajectory is not None else ():
        _ = trace.messages, trace.tools
