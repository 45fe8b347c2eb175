"""Reading a data set's rows: JSON lines, one JSON document, or Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compose.errors import CommandError, usage

Row = dict[str, Any]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, by its suffix; CommandError when it can't be read, with the line."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise usage(f"can't read {path}: {exc}", hint="polynya tasks import FILE --format …") from exc
    if path.suffix == ".json":
        yield from _document(path, text)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as exc:
                raise usage(f"{path}, line {number}: is no JSON: {exc}") from exc
            yield _mapping(row, f"{path}, line {number}")


def _document(path: Path, text: str) -> Iterator[Row]:
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as exc:
        raise usage(f"{path} is no JSON: {exc}", hint="one row a line is read from a file that ends in .jsonl") from exc
    for number, row in enumerate(plain if isinstance(plain, list) else [plain], 1):
        yield _mapping(row, f"{path}, row {number}")


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as exc:
        raise CommandError("Parquet needs pyarrow", hint="pip install 'polynya[trainer]'") from exc
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as exc:
        raise usage(f"can't read {path}: {exc}") from exc


def _mapping(row: object, where: str) -> Row:
    if not isinstance(row, dict):
        raise usage(f"{where}: a row must be a mapping of fields")
    return row
