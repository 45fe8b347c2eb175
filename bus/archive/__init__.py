"""The log as Parquet files, for as long as one likes: written with its offsets, read like the log itself.

`archive(bus, directory)` copies topics to their end, or for ever; `ArchiveLog(directory)` has the log's `tail`. Needs pyarrow
(the extra `trainer`).
"""

from __future__ import annotations

from bus.archive.layout import ARCHIVED_TOPICS, ArchiveError
from bus.archive.reader import ArchiveLog
from bus.archive.writer import ArchiveReport, archive

__all__ = ["ARCHIVED_TOPICS", "ArchiveError", "ArchiveLog", "ArchiveReport", "archive"]
