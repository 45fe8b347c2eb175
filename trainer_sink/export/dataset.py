"""A data set out of the log: reads a span of it, lets a maker choose rows, writes them as a whole, or adds them to an earlier export."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol

from bus import Start
from bus.protocol import LogReader
from schemas import json_text
from schemas.records import ScoredTrajectory
from trainer_sink.export.arrow import require_pyarrow
from trainer_sink.export.card import card
from trainer_sink.export.columns import Columns, loose
from trainer_sink.export.manifest import NAME, Counts, Makers, Manifest, ManifestError, Run
from trainer_sink.export.place import LINES, TRAIN, Existing, ExportPlaceError, Place, link
from trainer_sink.export.shards import SHARD_BYTES, Shard, Shards
from trainer_sink.export.span import TOPIC, SpanReader, check_same_log
from trainer_sink.export.spool import Entry, ScoredSpool
from trainer_sink.filters import GroupFilter

VALIDATION: Final = "validation"

Row = dict[str, Any]
Sessions = Iterable[tuple[Entry, ScoredTrajectory]]


@dataclass(slots=True)
class Progress:
    """What a maker is told and what it tells: counts, who made the rows, and what an earlier run has exported already."""

    counts: Counts = field(default_factory=Counts)
    makers: Makers = field(default_factory=Makers)
    known: frozenset[str] = frozenset()
    """Values of the maker's `known_by` column."""
    known_ids: frozenset[str] = frozenset()
    """Values of the column `id`."""
    open_from: dict[int, int] = field(default_factory=dict)
    """By partition the first record that the next run must read again."""


class Maker(Protocol):
    """Chooses rows: one for each kind of data set."""

    kind: ClassVar[str]
    known_by: ClassVar[str]
    """The column by which a later run knows what is there already."""

    def columns(self) -> Columns:
        """What a row has."""
        ...

    def options(self) -> dict[str, Any]:
        """Everything that decides which rows there are and how they look."""
        ...

    def rows(self, sessions: Sessions, progress: Progress) -> Iterator[tuple[str, Row]]:
        """(task_id, row) in the order of the sessions: by task, group, index. Every session is counted in `progress`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which tasks are for validation: a share of them, by a hash of their id, so that it doesn't depend on the others."""

    validation: float = 0.0
    seed: int = 0

    def of(self, task_id: str) -> str:
        """The split of a task."""
        digest = hashlib.sha256(f"{self.seed}:{task_id}".encode(errors="surrogatepass")).digest()
        return VALIDATION if int.from_bytes(digest[:8]) < self.validation * 2**64 else TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the files look. `licence` (SPDX, in the card) and the size of shards don't change what an export holds."""

    format: Literal["jsonl", "parquet"] = "jsonl"
    split: Split = field(default_factory=Split)
    bare: bool = False
    """Rows of messages and tools alone, for APIs that refuse other keys; such an export can't be added to."""
    licence: str = ""
    shard_bytes: int = SHARD_BYTES


BARE: Final = ("messages", "tools", "prompt", "chosen", "rejected")


async def export_dataset(
    log: LogReader,
    target: Path,
    maker: Maker,
    layout: Layout,
    *,
    existing: Existing = "refuse",
    start: Start = "earliest",
    until: Mapping[int, int] | None = None,
) -> Manifest:
    """Write what `maker` chooses of the log (or an archive) to `target`, a directory or a `.jsonl` file.

    The same records and options give the same bytes. The export appears whole or not at all; interrupted, the same call does
    it again. One that is added to (`existing="append"`) goes on where it ends, whatever `start` says. Raises ExportPlaceError or ManifestError for what stands at `target`, ExportSourceError when the log isn't the one
    that an earlier run read, ExportDependencyError without pyarrow, UnknownSchemaIdError for records of a newer release.
    """
    if layout.format == "parquet":
        require_pyarrow()
    place = Place(target)
    if place.is_file and layout.format != "jsonl":
        raise ExportPlaceError(f"{target} is one file: a data set of {layout.format} needs a directory")
    writing = _Writing(place, maker, layout, place.existing(existing))
    if writing.old is not None:
        await check_same_log(log, writing.old.runs[-1].span)
        start = {(TOPIC, n): offset for n, offset in writing.old.runs[-1].next.items()}
    reader = SpanReader(log, start=start, until=until)
    with ScoredSpool(GroupFilter(allow_off_context=True)) as spool:
        await spool.fill(reader.records())
        return await asyncio.to_thread(writing.write, spool, reader)


class _Writing:
    """One run, once the log is read."""

    def __init__(self, place: Place, maker: Maker, layout: Layout, old: Manifest | None) -> None:
        self._place = place
        self._maker = maker
        self._layout = layout
        self._options = {
            **maker.options(),
            "format": layout.format,
            "validation": layout.split.validation,
            "seed": layout.split.seed,
            "bare": layout.bare,
        }
        self.old = old
        if old is not None:
            self._check(old)

    def write(self, spool: ScoredSpool, reader: SpanReader) -> Manifest:
        """Rows to files, files to their place."""
        layout, place = self._layout, self._place
        progress = self._progress()
        counts = progress.counts
        counts.records, counts.set_aside = spool.records, spool.skipped.copy()
        columns = [c for c in self._maker.columns() if not layout.bare or c["name"] in BARE]
        with place.building() as part:
            size = 1 << 62 if place.is_file else layout.shard_bytes
            shards = Shards(part, f".{layout.format}", columns, shard_bytes=size)
            names = {c["name"] for c in columns}
            for task_id, row in self._maker.rows(spool.read(), progress):
                split = layout.split.of(task_id)
                shards.add(split, {k: v for k, v in row.items() if k in names})
                counts.rows[split] += 1
            counts.check()
            made = self._with_old(shards.close(), part)
            named = place.name(made)
            manifest = Manifest(
                kind=self._maker.kind,
                options=self._options,
                runs=(*(self.old.runs if self.old else ()), self._run(reader, progress)),
                files={name: shard.facts() for name, shard in named},
            )
            texts = {} if place.is_file else {"README.md": self._card(manifest, columns)}
            texts[place.manifest_path.name if place.is_file else NAME] = manifest.text()
            place.commit(part, {name: shard.path for name, shard in named}, texts)
        return manifest

    def _run(self, reader: SpanReader, progress: Progress) -> Run:
        following = {n: progress.open_from.get(n, end) for n, end in reader.span.end.items()}
        return Run(reader.span, following, progress.counts, progress.makers)

    def _card(self, manifest: Manifest, columns: Columns) -> str:
        splits: dict[str, tuple[int, int]] = {}
        for facts in manifest.files.values():
            rows, size = splits.get(facts["split"], (0, 0))
            splits[facts["split"]] = (rows + facts["rows"], size + facts["bytes"])
        typed = columns if self._layout.format == "parquet" else loose(columns)
        return card(manifest, typed, splits, self._layout.licence)

    def _check(self, old: Manifest) -> None:
        if self._layout.bare:
            raise ManifestError("bare rows don't say whose they are, so nothing can be added: --replace")
        mine = json_text.load(json_text.dump(self._options))
        if (old.kind, dict(old.options)) != (self._maker.kind, mine):
            other = sorted(k for k in {*mine, *old.options} if mine.get(k) != old.options.get(k))
            raise ManifestError(
                f"{self._place.target} was exported as {old.kind} with other options ({', '.join(other) or 'another kind'}): "
                "give the same ones, --replace, or another place"
            )

    def _progress(self) -> Progress:
        if self.old is None:
            return Progress()
        known: set[str] = set()
        ids: set[str] = set()
        for name in self.old.files:
            for one, there in _values(self._place.path_of(name), self._maker.known_by, "id"):
                known.add(one)
                ids.add(there)
        return Progress(known=frozenset(known), known_ids=frozenset(ids))

    def _with_old(self, new: list[Shard], part: Path) -> list[Shard]:
        """The shards of earlier runs, then the new ones; of a single file the old lines, then the new ones."""
        if self.old is None:
            return new or [_empty(part, self._layout, self._maker.columns())]
        shards: list[Shard] = []
        for number, (name, facts) in enumerate(self.old.files.items()):
            path = self._place.path_of(name)
            there = part / f"old.{number:05d}{path.suffix}"
            more = [s for s in new if s.split == facts["split"]] if self._place.is_file else []
            if not more:
                shards.append(Shard(facts["split"], link(path, there), int(facts["rows"])))
                continue
            there.write_bytes(path.read_bytes() + more[0].path.read_bytes())
            shards.append(Shard(facts["split"], there, int(facts["rows"]) + more[0].rows))
            new = [s for s in new if s is not more[0]]
        return sorted([*shards, *new], key=lambda shard: shard.split)


def _empty(part: Path, layout: Layout, columns: Columns) -> Shard:
    """A shard without rows, so that an export of nothing still loads where it can."""
    from trainer_sink.export.shards import LinesFile, ParquetFile

    path = part / f"{TRAIN}.00000.{layout.format}"
    (LinesFile if layout.format == "jsonl" else ParquetFile)(path, columns).close()
    return Shard(TRAIN, path, 0)


def _values(path: Path, *columns: str) -> Iterator[tuple[str, ...]]:
    """These columns of an exported file; '' where a row has none."""
    if path.suffix == LINES:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = json_text.load(line)
                yield tuple(str(row.get(c, "")) for c in columns)
        return
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        has = [c for c in columns if c in file.schema_arrow.names]
        for batch in file.iter_batches(columns=has):
            for row in batch.to_pylist():
                yield tuple(str(row.get(c) or "") for c in columns)
