"""Where the steps' reports go: metrics.jsonl always; TensorBoard and Weights & Biases where they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from trainer_sink.reference.errors import TrainerError
from trainer_sink.reference.reports import StepReport
from trainer_sink.reference.settings import GrpoSettings

METRICS = "metrics.jsonl"


class MetricSink(Protocol):
    """One place that reports go to."""

    def add(self, report: StepReport) -> None:
        """Take one step's report."""

    def close(self) -> None:
        """Everything is written."""


class JsonLines:
    """metrics.jsonl: one line a step. After a restart the steps that are trained anew are taken out first."""

    def __init__(self, path: Path, *, resumed: StepReport | None = None) -> None:
        self.path = path
        kept = [r for r in read_reports(path) if resumed is not None and r.step <= resumed.step]
        if resumed is not None and not any(r.step == resumed.step for r in kept):
            kept.append(resumed)  # the crash came between the checkpoint and this line
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".tmp")
        aside.write_bytes(b"".join(_line(r) for r in kept))
        aside.replace(path)
        self._file = path.open("ab")

    def add(self, report: StepReport) -> None:
        """Append a line; it is in the file when this returns."""
        self._file.write(_line(report))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Events under `tensorboard/`, one scalar a metric."""

    def __init__(self, directory: Path, *, resumed_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as missing:
            raise TrainerError(f"TensorBoard needs {missing.name}: pip install 'polynya[tensorboard]'") from missing
        # Steps that a crash undid are hidden: their numbers come again.
        self._writer: Any = SummaryWriter(str(directory), purge_step=resumed_step + 1 if resumed_step else None)

    def add(self, report: StepReport) -> None:
        """Write and flush the step's scalars."""
        for name, value in scalars(report).items():
            self._writer.add_scalar(name, value, report.step, walltime=report.at / 1000)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WeightsAndBiases:
    """An offline run under `wandb/`, which it makes itself; `wandb sync` uploads it."""

    def __init__(self, directory: Path, settings: GrpoSettings) -> None:
        try:
            import wandb
        except ModuleNotFoundError as missing:
            raise TrainerError(f"Weights & Biases needs {missing.name}: pip install 'polynya[wandb]'") from missing
        directory.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            mode="offline",
            project="polynya",
            name=settings.trainer_id,
            dir=str(directory),
            config=settings.model_dump(mode="json"),
        )

    def add(self, report: StepReport) -> None:
        """Log the step's scalars."""
        self._run.log(scalars(report), step=report.step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def sinks(settings: GrpoSettings, *, resumed: StepReport | None) -> list[MetricSink]:
    """Those that the settings ask for; TrainerError names a missing extra."""
    out = settings.output_dir
    found: list[MetricSink] = []
    try:
        if settings.tensorboard:
            found.append(TensorBoard(out / "tensorboard", resumed_step=resumed.step if resumed else 0))
        if settings.wandb:
            found.append(WeightsAndBiases(out, settings))
        found.insert(0, JsonLines(out / METRICS, resumed=resumed))  # last: it takes lines out of a file that is there
    except BaseException:
        for sink in found:
            sink.close()
        raise
    return found


def scalars(report: StepReport) -> dict[str, float]:
    """A report's numbers by name; phases as `seconds/…`, reasons as `counts/…`."""
    values = report.to_json()
    flat = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    for part in ("seconds", "counts"):
        flat |= {f"{part}/{name}": float(value) for name, value in values[part].items()}
    return {name: value for name, value in flat.items() if name not in ("step", "at")}


def read_reports(path: Path) -> list[StepReport]:
    """The whole lines of a metrics.jsonl, in their order; a torn last line is left out. Empty when there is no file."""
    try:
        lines: Sequence[bytes] = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [StepReport.from_json(orjson.loads(line)) for line in lines if line.endswith(b"\n")]


def _line(report: StepReport) -> bytes:
    return orjson.dumps(report.to_json(), option=orjson.OPT_APPEND_NEWLINE)
