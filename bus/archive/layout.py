"""Where an archive's files stand and what they hold: `<topic>/partition=<n>/<first offset>-<last offset>.parquet`.

The names are the position: what follows the last file's last offset isn't archived yet. So a file exists whole or not at all, and
a crash repeats or loses nothing.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bus.errors import BusError

ARCHIVED_TOPICS: Final = (
    "capture.completions",
    "rollout.sessions",
    "trajectory.built",
    "reward.assigned",
    "trajectory.scored",
)
"""Everything from which trajectories and results can be made again."""

_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")


class ArchiveError(BusError):
    """An archive can't be written or read: pyarrow is missing, another process writes it, or it is of another log."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """One file: the records [first, last] of a partition, less those that the log itself had lost."""

    first: int
    last: int
    path: Path


def partition_dir(root: Path, topic: str, partition: int) -> Path:
    """Where a partition's files stand."""
    return root / topic / f"partition={partition}"


def piece_path(root: Path, topic: str, partition: int, first: int, last: int) -> Path:
    """The name of a file with these offsets."""
    return partition_dir(root, topic, partition) / f"{first:020d}-{last:020d}.parquet"


def partitions(root: Path, topic: str) -> list[int]:
    """The partitions of a topic that the archive has files of."""
    found = (root / topic).glob("partition=*")
    return sorted(int(path.name.partition("=")[2]) for path in found if path.is_dir())


def pieces(root: Path, topic: str, partition: int) -> list[Piece]:
    """A partition's files in order; ArchiveError when two hold the same offsets, which no writer of ours does."""
    matches = ((path, _NAME.fullmatch(path.name)) for path in partition_dir(root, topic, partition).glob("*.parquet"))
    found = sorted(Piece(int(m[1]), int(m[2]), path) for path, m in matches if m is not None)
    for one, other in itertools.pairwise(found):
        if other.first <= one.last:
            raise ArchiveError(f"{one.path} and {other.path.name} overlap: remove one of them")
    return found


def require_pyarrow() -> Any:
    """The pyarrow module, or ArchiveError that says how to get it."""
    try:
        import pyarrow as pa
    except ImportError as exc:
        raise ArchiveError("an archive needs pyarrow: pip install 'polynya[trainer]'") from exc
    return pa


def columns() -> Any:
    """The Arrow schema of every file. `value` is the framed record (null: a tombstone), with claim checks resolved."""
    pa = require_pyarrow()
    header = pa.struct([("name", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()),
            ("type", pa.string()),
            ("session_id", pa.string()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
        ]
    )
