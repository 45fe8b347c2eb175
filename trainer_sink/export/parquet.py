"""Parquet: one row for each trace of the newest revision of every session. Needs the extra `trainer` (pyarrow)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bus import Start
from bus.protocol import LogReader
from schemas import json_text
from trainer_sink.errors import SinkError
from trainer_sink.export.arrow import ExportDependencyError, Row, batch, require_pyarrow
from trainer_sink.export.durable import whole
from trainer_sink.export.span import TOPIC, SpanReader
from trainer_sink.export.spool import ScoredSpool
from trainer_sink.filters import GroupFilter

# A row group of 1,000 traces of 20k tokens is about 260 MB in memory at most; readers skip by row group.
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
METADATA_KEY: Final = b"polynya"

__all__ = ["ExportDependencyError", "ExportReport", "export_parquet", "read_report"]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export holds and what it left out. It also stands in the file's metadata under `polynya`, as JSON."""

    rows: int = 0
    """Traces."""
    sessions: int = 0
    groups: int = 0
    sessions_without_traces: int = 0
    """Failed or empty sessions: they have no row, so they are counted here, by status in the next field."""
    without_traces_by_status: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    """Records left out, by reason: filtered, unreadable, duplicates, revised by a newer revision, torn."""


async def export_parquet(
    log: LogReader,
    path: Path | str,
    *,
    start: Start = "earliest",
    policy_id: str | None = None,
    task_ids: Iterable[str] | None = None,
    harness: Iterable[str] | str | None = None,
    allow_off_context: bool = False,
) -> ExportReport:
    """Write the scored trajectories of a log or an archive, from `start` to its end as of now, to one Parquet file.

    Rows are ordered by task, group, session index and trace, so the same log gives the same file. The file appears
    whole or not at all. Raises ExportDependencyError without pyarrow, UnknownSchemaIdError for records of a newer
    release.
    """
    require_pyarrow()
    wanted = GroupFilter.of(
        policy_id=policy_id, task_ids=task_ids, harness=harness, allow_off_context=allow_off_context
    )
    with ScoredSpool(wanted) as spool:
        await spool.fill(SpanReader(log, start=start).records())
        return await asyncio.to_thread(_write, spool, Path(path))


def _write(spool: ScoredSpool, path: Path) -> ExportReport:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from trainer_sink.export.rows import COLUMNS, session_rows

    tally = _Tally(spool)
    with whole(path) as part, pq.ParquetWriter(part, pa.schema(list(COLUMNS)), compression="zstd") as writer:
        rows: list[Row] = []
        size = 0
        for entry, scored in spool.read():
            try:
                new = session_rows(scored, entry.source, TOPIC)
            except ValueError:  # torn or unequal token arrays: counted, never padded
                tally.torn()
                continue
            tally.session(scored.group_id, len(new), scored.status.value)
            rows += new
            size += entry.length
            if size >= _ROW_GROUP_BYTES:
                writer.write_batch(batch(rows, COLUMNS))
                rows, size = [], 0
        if rows:
            writer.write_batch(batch(rows, COLUMNS))
        report = tally.report()
        writer.add_key_value_metadata({METADATA_KEY: json_text.dump(asdict(report)).encode()})
    return report


class _Tally:
    """Counts while rows are written."""

    def __init__(self, spool: ScoredSpool) -> None:
        self._skipped = spool.skipped.copy()
        self._groups: set[str] = set()
        self._rows = self._sessions = 0
        self._empty: dict[str, int] = {}

    def torn(self) -> None:
        self._skipped["torn"] += 1

    def session(self, group_id: str, rows: int, status: str) -> None:
        self._groups.add(group_id)
        self._sessions += 1
        self._rows += rows
        if not rows:
            self._empty[status] = self._empty.get(status, 0) + 1

    def report(self) -> ExportReport:
        empty = dict(sorted(self._empty.items()))
        skipped = dict(sorted(self._skipped.items()))
        return ExportReport(self._rows, self._sessions, len(self._groups), sum(empty.values()), empty, skipped)


def read_report(path: Path | str) -> ExportReport:
    """The report in a file's metadata; SinkError when it is no export of ours."""
    import pyarrow.parquet as pq

    metadata: dict[bytes, bytes] = pq.read_metadata(path).metadata or {}
    if METADATA_KEY not in metadata:
        raise SinkError(f"{path} has no polynya metadata: it wasn't written by `export parquet`")
    return ExportReport(**json_text.load(metadata[METADATA_KEY].decode()))
