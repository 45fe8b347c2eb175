"""A run's checkpoints: weights, optimizer, position on the log and version, written together or not at all.

`checkpoints/step-000012/` is a model directory that an engine loads, with what only the trainer needs in `trainer/` inside it. It is
filled under another name, synced and renamed; `latest` names the newest, replaced by a rename. So a crash leaves the old one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import orjson

from trainer_sink.reference.errors import CheckpointError, RunInUseError

FORMAT: Final = 1
LATEST: Final = "latest"
FOLDER: Final = "checkpoints"
LOCK: Final = ".lock"
OPTIMIZER: Final = Path("trainer") / "optimizer.state"
STATE: Final = Path("trainer") / "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands after a step: what is beside the weights and the optimizer."""

    step: int
    sink: Mapping[str, Any]
    """`GroupConsumer.state_dict()` as it is with this step committed."""
    weights_digest: str
    from_version: str
    """The version that the step began with; what its weights were then called, the policy's timeline says."""
    rewards: list[float] = field(default_factory=list)
    """Of each step so far."""
    baseline: float | None = None
    last_report: Mapping[str, Any] | None = None
    """The step's report as far as it was known: metrics.jsonl gets it after a crash before that line."""
    trainer_id: str = ""
    policy_id: str = ""
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)

    @classmethod
    def from_bytes(cls, data: bytes, where: Path) -> Self:
        """Read `to_bytes`; CheckpointError when it is something else."""
        try:
            values = orjson.loads(data)
            if values["format"] != FORMAT:
                raise CheckpointError(f"{where} is of format {values['format']}, this release reads {FORMAT}")
            return cls(**values)
        except (orjson.JSONDecodeError, KeyError, TypeError) as exc:
            raise CheckpointError(
                f"{where} is damaged ({exc!r}): resume from an older one, or use another directory"
            ) from exc


class Checkpoints:
    """The checkpoints of one output directory; one process at a time may write."""

    def __init__(self, output_dir: Path, *, keep: int = 2) -> None:
        self.folder = output_dir / FOLDER
        self._keep = keep

    def latest(self) -> Path | None:
        """The newest whole checkpoint; None before the first."""
        pointer = self.folder / LATEST
        try:
            name = pointer.read_text().strip()
        except FileNotFoundError:
            return None
        path = self.folder / name
        if not (path / STATE).is_file():
            raise CheckpointError(
                f"{pointer} names {name}, which isn't there: write the name of another step-… of {self.folder} into it"
            )
        return path

    def state(self, path: Path) -> RunState:
        """What stands beside the weights of a checkpoint."""
        return RunState.from_bytes((path / STATE).read_bytes(), path / STATE)

    def write(self, step: int, fill: Callable[[Path], RunState]) -> Path:
        """Make the checkpoint of a step: `fill` writes weights and OPTIMIZER into the directory and returns the state.

        An unfinished one of the same step is replaced. Afterwards `latest` names it, and old ones are removed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"step-{step:06d}"
        building = self.folder / f".step-{step:06d}.tmp"
        shutil.rmtree(building, ignore_errors=True)
        (building / STATE.parent).mkdir(parents=True)
        state = fill(building)
        (building / STATE).write_bytes(state.to_bytes())
        for path in sorted(building.rglob("*")):
            _sync(path)
        _sync(building)
        shutil.rmtree(target, ignore_errors=True)  # of this step, but `latest` never named it
        building.rename(target)
        pointer = self.folder / f".{LATEST}.tmp"
        pointer.write_text(target.name + "\n")
        _sync(pointer)
        pointer.replace(self.folder / LATEST)
        _sync(self.folder)
        self._prune(target)
        return target

    def _prune(self, newest: Path) -> None:
        """Those before the newest `keep`, and what crashes left."""
        for path in self.folder.glob(".step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)
        whole = sorted(path for path in self.folder.glob("step-*") if path.name <= newest.name)
        for path in whole[: -self._keep]:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def sole_use(output_dir: Path) -> Iterator[None]:
    """Makes the directory if need be; nobody else trains in it meanwhile, or RunInUseError. The lock goes with the process."""
    output_dir.mkdir(parents=True, exist_ok=True)
    with (output_dir / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RunInUseError(
                f"another process trains in {output_dir}: wait for it, or use another output directory"
            ) from exc
        yield


def _sync(path: Path) -> None:
    """Bytes or names of a directory are on the disk afterwards."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
