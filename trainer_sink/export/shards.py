"""The files of a data set: rows into shards, one format each. Nothing here knows what a row means."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

from schemas import json_text
from trainer_sink.export.columns import Columns, arrow_schema, stored
from trainer_sink.export.durable import sync

SHARD_BYTES: Final = 256 << 20
_ROW_GROUP_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """One finished file of a split."""

    split: str
    path: Path
    rows: int

    def facts(self) -> dict[str, Any]:
        """As the manifest names it."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"split": self.split, "rows": self.rows, "bytes": self.path.stat().st_size, "sha256": digest}


class ShardFile(Protocol):
    """Takes rows until it is closed; then the file is whole and on the disk."""

    rows: int
    size_bytes: int

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


class Shards:
    """Writes the rows of each split into files of about `shard_bytes` under `root`; what is unfinished stays with the caller."""

    def __init__(self, root: Path, suffix: str, columns: Columns, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._root = root
        self._suffix = suffix
        self._columns = columns
        self._shard_bytes = shard_bytes
        self._open: dict[str, tuple[Path, ShardFile]] = {}
        self.done: list[Shard] = []

    def add(self, split: str, row: Mapping[str, Any]) -> None:
        """Write one row."""
        if split not in self._open:
            number = sum(shard.split == split for shard in self.done)
            path = self._root / f"{split}.{number:05d}{self._suffix}"
            kind = LinesFile if self._suffix == ".jsonl" else ParquetFile
            self._open[split] = (path, kind(path, self._columns))
        file = self._open[split][1]
        file.add(row)
        if file.size_bytes >= self._shard_bytes:
            self._finish(split)

    def close(self) -> list[Shard]:
        """Finish what is open; all shards by split, in order."""
        for split in list(self._open):
            self._finish(split)
        return sorted(self.done, key=lambda shard: (shard.split, shard.path.name))

    def _finish(self, split: str) -> None:
        path, file = self._open.pop(split)
        file.close()
        self.done.append(Shard(split, path, file.rows))


class LinesFile:
    """JSON lines.

    Readers infer types from a file's first megabytes, so each row that has a key or a type that no row before it had stands in
    front; the others follow in their order.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        del columns  # lines have keys
        self._path = path
        self._front: list[str] = []
        self._seen: set[tuple[str, ...]] = set()
        self._body: IO[str] = path.with_name(f"{path.name}.body").open("w+", encoding="utf-8")
        self.rows = 0
        self.size_bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        line = json_text.dump(row) + "\n"
        kinds = set(_kinds(row, ()))
        if kinds <= self._seen:
            self._body.write(line)
        else:
            self._seen |= kinds
            self._front.append(line)
        self.rows += 1
        self.size_bytes += len(line.encode())

    def close(self) -> None:
        """Put the front and the rest together."""
        self._body.seek(0)
        with self._path.open("w", encoding="utf-8") as file:
            file.writelines(self._front)
            shutil.copyfileobj(self._body, file)
            file.flush()
            os.fsync(file.fileno())
        self._body.close()
        self._path.with_name(f"{self._path.name}.body").unlink()


def _kinds(value: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every key of a row with the type of its value, however deep; all items of a list are one."""
    if isinstance(value, Mapping):
        return [kind for key, inner in value.items() for kind in _kinds(inner, (*path, key))] or [(*path, "{}")]
    if isinstance(value, list):
        return [kind for inner in value for kind in _kinds(inner, (*path, "[]"))]
    return [] if value is None else [(*path, type(value).__name__)]


class ParquetFile:
    """Parquet with the columns' types; what `datasets` calls `json` is text there."""

    def __init__(self, path: Path, columns: Columns) -> None:
        import pyarrow.parquet as pq

        self._path = path
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._writer: Any = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._pending_bytes = 0
        self.rows = 0
        self.size_bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        self._rows.append(stored(row, self._columns))
        size = len(json_text.dump(row))
        self.rows += 1
        self.size_bytes += size
        self._pending_bytes += size
        if self._pending_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is pending, and the footer."""
        self._flush()
        self._writer.close()
        sync(self._path)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._pending_bytes = [], 0
