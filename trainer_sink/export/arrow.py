"""What exports ask of pyarrow, which is imported when it is asked for (extra `trainer`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer_sink.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


class ExportDependencyError(SinkError, ImportError):
    """pyarrow isn't installed."""


def require_pyarrow() -> None:
    """Raise ExportDependencyError without it; before a log is read, not after."""
    try:
        import pyarrow as pa  # noqa: F401 - only whether it is there
    except ImportError as exc:
        raise ExportDependencyError("Parquet needs pyarrow: pip install 'polynya[trainer]'") from exc


def batch(rows: Sequence[Row], columns: Sequence[tuple[str, pa.DataType]]) -> pa.RecordBatch:
    """Rows as one Arrow batch; lists of numbers (numpy arrays of shape (n,)) go in without a Python list in between."""
    import pyarrow as pa

    arrays = []
    for name, kind in columns:
        values = [row[name] for row in rows]
        if pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type):
            offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])]).astype(np.int32)
            flat = np.concatenate(values) if values else np.empty(0)
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, type=kind.value_type)))
        else:
            arrays.append(pa.array(values, type=kind))
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])
