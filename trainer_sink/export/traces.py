"""Traces as a data set: every session with tokens, the columns of `export parquet`, and a card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from schemas.records import ScoredTrajectory, Status
from trainer_sink.export.columns import Columns, columns_of
from trainer_sink.export.dataset import Progress, Row, Sessions
from trainer_sink.export.examples import Acceptance
from trainer_sink.export.shape import cleaned
from trainer_sink.export.span import TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRows:
    """A row for each trace of each session; failed ones too, where they have traces."""

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(statuses=frozenset(Status), min_reward=None))
    allow_off_context: bool = False

    kind: ClassVar[str] = "traces"
    known_by: ClassVar[str] = "session_id"

    def columns(self) -> Columns:
        """See `Maker.columns`."""
        import pyarrow as pa

        from trainer_sink.export.rows import COLUMNS

        return columns_of(pa.schema(list(COLUMNS)))

    def options(self) -> dict[str, Any]:
        """See `Maker.options`."""
        return {**self.acceptance.to_json(), "allow_off_context": self.allow_off_context}

    def rows(self, sessions: Sessions, progress: Progress) -> Iterator[tuple[str, Row]]:
        """See `Maker.rows`."""
        from trainer_sink.export.rows import session_rows

        counts = progress.counts
        for entry, scored in sessions:
            counts.sessions += 1
            reason = self._refuses(scored, progress)
            rows: list[Row] = []
            if not reason:
                try:
                    rows = session_rows(scored, entry.source, TOPIC)
                except ValueError:  # torn or unequal token arrays: counted, never padded
                    reason = "torn"
            if reason:
                counts.refused[reason] += 1
                continue
            counts.exported += 1
            counts.traces += len(rows)
            counts.examples += len(rows)
            progress.makers.add(scored)
            for row in rows:
                yield scored.task_id, cleaned(row)

    def _refuses(self, scored: ScoredTrajectory, progress: Progress) -> str:
        if scored.session_id in progress.known:
            return "exported_before"
        if reason := self.acceptance.refuses(scored):
            return reason
        traces = scored.trajectory.traces if scored.trajectory else []
        return "off_context" if not self.allow_off_context and any(t.is_off_context for t in traces) else ""
