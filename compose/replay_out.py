"""Where `polynya replay` puts trajectories: a topic, or a file in pieces that become one at the end; and its checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from bus import Bus
from bus.claims import check_in
from compose.errors import CommandError, usage
from compose.records_json import as_json
from schemas.records import ScoredTrajectory, Trajectory
from schemas.topics import DAY_MS, TOPICS, Topic, TopicKind
from trainer_sink.export.arrow import batch
from trainer_sink.export.durable import sync

REPLAY_TOPICS: Final = "trajectory.replay."
"""How the names of topics begin that a replay may write: what it makes must not reach the joiner by mistake."""

BATCH_BYTES: Final = 64 << 20
FORMATS: Final = (".jsonl", ".parquet")


class Checkpoint:
    """The small file by which a replay goes on; it belongs to one set of arguments."""

    def __init__(self, path: Path, arguments: object, span: tuple[int | None, int | None]) -> None:
        """`span` is what the arguments mean now; `2h` means something else when the replay goes on, so the first one stays."""
        self.path = path
        self.span = span
        self._arguments = json.loads(json.dumps(arguments))

    def load(self) -> dict[str, Any] | None:
        """What was saved last; None when nothing was. CommandError when it is of another replay."""
        if not self.path.exists():
            return None
        saved: dict[str, Any] = json.loads(self.path.read_text())
        if saved.pop("arguments", None) != self._arguments:
            raise CommandError(
                f"{self.path} is the checkpoint of a replay with other arguments",
                hint="--fresh begins anew, or choose another --out",
            )
        self.span = tuple(saved.pop("span"))
        return saved

    def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Write it whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.part")
        with partial.open("w") as file:
            json.dump({**checkpoint, "arguments": self._arguments, "span": self.span}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def remove(self) -> None:
        """The replay is done, or begins anew."""
        self.path.unlink(missing_ok=True)


def replay_topic(name: str, partitions: int) -> Topic:
    """The topic `name` as a replay declares it; a usage error for one that isn't a replay's."""
    if name in TOPICS or not name.startswith(REPLAY_TOPICS) or name == REPLAY_TOPICS:
        raise usage(
            f"--out {name!r} is neither a file ({', '.join(FORMATS)}) nor a replay's topic",
            hint=f"--out {REPLAY_TOPICS}NAME",
        )
    doc = "Trajectories that a replay made."
    return Topic(name, TopicKind.FACT, "session_id", ("trajectory",), 14 * DAY_MS, partitions=partitions, doc=doc)


class TopicOutput:
    """Publishes under the trajectories' own event ids: what is put again after a stop is the same event."""

    def __init__(self, bus: Bus, topic: str, checkpoint: Checkpoint) -> None:
        self._bus = bus
        self._topic = topic
        self._checkpoint = checkpoint

    async def put(self, trajectory: Trajectory) -> None:
        """Returns once it is acknowledged."""
        encoded = await check_in(trajectory, self._bus.blobs)
        await self._bus.publish_raw(self._topic, encoded.key, encoded.value, encoded.headers)

    async def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Everything that was put is acknowledged already."""
        self._checkpoint.save(checkpoint)


class FileOutput:
    """One file: JSON lines of trajectories, or Parquet with a row for each trace. It appears whole at the end."""

    def __init__(self, path: Path, checkpoint: Checkpoint) -> None:
        self._path = path
        self._checkpoint = checkpoint
        self._parts = path.with_name(f".{path.name}.parts")
        self._count = 0
        self._piece: _Piece | None = None

    def resume(self, checkpoint: Mapping[str, Any] | None) -> None:
        """Keep the pieces that the checkpoint knows, and no others. CommandError when one of them is gone."""
        self._count = int(checkpoint["pieces"]) if checkpoint else 0
        self._parts.mkdir(parents=True, exist_ok=True)
        if missing := [name for n in range(self._count) if not (name := self._name(n)).exists()]:
            raise CommandError(f"{missing[0]}, a piece that the last run wrote, is gone", hint="--fresh begins anew")
        for path in self._parts.iterdir():
            if int(path.stem) >= self._count:
                path.unlink()

    async def put(self, trajectory: Trajectory) -> None:
        """Into the piece that is being written."""
        if self._piece is None:
            self._piece = _piece(self._name(self._count))
        self._piece.add(trajectory)

    async def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Finish the piece, then say so."""
        if self._piece is not None:
            self._piece.close()
            self._piece = None
            self._count += 1
        self._checkpoint.save({**checkpoint, "pieces": self._count})

    def abandon(self) -> None:
        """Stop in the middle: the piece that is being written is made again from the last checkpoint."""
        if self._piece is not None:
            self._piece.close()
            self._piece = None

    def finish(self) -> None:
        """Make one file of the pieces."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._path.with_name(f".{self._path.name}.part")
        _join([self._name(n) for n in range(self._count)], whole, self._path.suffix)
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        whole.replace(self._path)
        # Before the pieces: a checkpoint without them could never go on, pieces without one are cleared away.
        self._checkpoint.remove()
        shutil.rmtree(self._parts)

    def _name(self, number: int) -> Path:
        return self._parts / f"{number:08d}{self._path.suffix}"


class _Piece(Protocol):
    def add(self, trajectory: Trajectory) -> None: ...

    def close(self) -> None: ...


def _piece(path: Path) -> _Piece:
    return _ParquetPiece(path) if path.suffix == ".parquet" else _LinesPiece(path)


class _LinesPiece:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def add(self, trajectory: Trajectory) -> None:
        self._file.write(json.dumps(as_json(trajectory)) + "\n")

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class _ParquetPiece:
    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from trainer_sink.export.rows import COLUMNS

        self._path = path
        self._columns = COLUMNS
        self._writer = pq.ParquetWriter(path, pa.schema(list(COLUMNS)), compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def add(self, trajectory: Trajectory) -> None:
        from trainer_sink.export.rows import session_rows
        from trainer_sink.groups import Source

        rows = session_rows(_unscored(trajectory), Source(-1, -1), "replay")
        self._rows += rows
        self._size += sum(row["prompt_ids"].nbytes + 3 * row["response_ids"].nbytes for row in rows)
        if self._size >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(batch(self._rows, self._columns))
        self._rows, self._size = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
        sync(self._path)


def _unscored(trajectory: Trajectory) -> ScoredTrajectory:
    """A trajectory without a verdict in the shape that exports know; its traces share the credit as the joiner would."""
    weight = 1.0 / max(1, len(trajectory.traces))
    return ScoredTrajectory(
        session_id=trajectory.session_id,
        group_id=trajectory.group_id,
        task_id=trajectory.task_id,
        policy_id=trajectory.policy_id,
        trajectory_id=trajectory.trajectory_id,
        lease_id=trajectory.lease_id,
        attempt=trajectory.attempt,
        trajectory=replace(trajectory, traces=[replace(t, weight=weight) for t in trajectory.traces]),
        ended_at=trajectory.built_at,
    )


def _join(pieces: list[Path], whole: Path, suffix: str) -> None:
    if suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        from trainer_sink.export.rows import COLUMNS

        with pq.ParquetWriter(whole, pa.schema(list(COLUMNS)), compression="zstd") as writer:
            for path in pieces:
                with pq.ParquetFile(path) as file:
                    for group in range(file.num_row_groups):
                        writer.write_table(file.read_row_group(group))
        return
    with whole.open("wb") as out:
        for path in pieces:
            with path.open("rb") as piece:
                shutil.copyfileobj(piece, out)
