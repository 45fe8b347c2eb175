"""Where reports go: lines, TensorBoard events, a Weights & Biases run, a picture."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from trainer_sink.reference import GrpoSettings, StepReport, TrainerError
from trainer_sink.reference.metrics import JsonLines, TensorBoard, WeightsAndBiases, read_reports, scalars, sinks
from trainer_sink.reference.plot import draw_rewards
from trainer_sink.reference.reports import has_gained

PNG = b"\x89PNG\r\n\x1a\n"


def report(step: int, **more: Any) -> StepReport:
    """One step's."""
    fields: dict[str, Any] = {
        "version": str(step + 1),
        "from_version": str(step),
        "groups": 8,
        "sessions": 32,
        "sequences": 28,
        "tokens": 900,
        "computed_tokens": 3000,
        "reward": 0.5,
        "reward_average": 0.4,
        "gain": 0.1,
        "counts": {"zero_variance": 1},
        "seconds": {"wait": 4.0, "train": 0.25},
        "at": 1_700_000_000_000 + step,
    }
    return StepReport(step=step, **{**fields, **more})


def test_lines_are_read_back(tmp_path: Path) -> None:
    """Each step is in the file when `add` returns; a torn last line is none."""
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.add(report(1))
    lines.add(report(2))
    assert read_reports(path) == [report(1), report(2)]
    lines.close()
    with path.open("a") as file:
        file.write('{"step": 3')
    assert read_reports(path) == [report(1), report(2)]


def test_a_restart_takes_out_what_is_trained_anew_and_adds_what_is_missing(tmp_path: Path) -> None:
    """The checkpoint says how far the run is: lines beyond it go, its own is put in if the crash came before it."""
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path)
    for step in (1, 2, 3):
        first.add(report(step))
    first.close()
    JsonLines(path, resumed=report(2)).close()
    assert [r.step for r in read_reports(path)] == [1, 2]
    JsonLines(path, resumed=report(3)).close()
    assert [r.step for r in read_reports(path)] == [1, 2, 3]
    JsonLines(path).close()
    assert read_reports(path) == []


def test_tensorboard_has_every_number(tmp_path: Path) -> None:
    """Read back from the event file, by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, resumed_step=0)
    for step in (1, 2):
        board.add(report(step, reward=step / 4))
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(scalars(report(1)))
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 0.25), (2, 0.5)]
    assert [e.value for e in events.Scalars("seconds/train")] == [0.25, 0.25]


def test_wandb_gets_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own API, which is stood in for here: mode, settings, scalars by step, and the end."""
    told: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            told.append((step, values))

        def finish(self) -> None:
            told.append("finished")

    def init(**given: Any) -> Run:
        told.append(given)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    settings = GrpoSettings(model=tmp_path, output_dir=tmp_path, trainer_id="me")
    sink = WeightsAndBiases(tmp_path, settings)
    sink.add(report(1))
    sink.close()
    begun, logged, end = told
    assert (begun["mode"], begun["name"], begun["config"]["lr"]) == ("offline", "me", settings.lr)
    assert (logged, end) == ((1, scalars(report(1))), "finished")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    settings = GrpoSettings(model=tmp_path, output_dir=tmp_path, wandb=True)
    with pytest.raises(TrainerError, match=r"polynya\[wandb\]"):
        sinks(settings, resumed=None)


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    """A PNG of the size that was asked for, whole."""
    path = draw_rewards([0.2, 0.4, 0.7], tmp_path / "new" / "rewards.png", baseline=0.2)
    data = path.read_bytes()
    assert data.startswith(PNG)
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (960, 540)
    assert [p.name for p in path.parent.iterdir()] == ["rewards.png"]


@pytest.mark.parametrize(
    ("rewards", "baseline", "gained"),
    [
        ([0.9] * 4, 0.2, False),  # four of five steps
        ([0.9] * 5, 0.2, True),
        ([0.2, 0.2, 0.9, 0.9, 0.9, 0.9], None, False),  # the baseline's own two count among the five
        ([0.2, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9], None, True),
        ([0.2] * 9, 0.2, False),
    ],
)
def test_a_gain_needs_five_steps_beyond_its_baseline(
    rewards: list[float], baseline: float | None, gained: bool
) -> None:
    """By hand."""
    assert has_gained(rewards, baseline, 0.25) is gained


def test_the_console_line_tells_the_step() -> None:
    """What a person looks at, in one line."""
    line = report(3).line()
    assert "\n" not in line
    for part in ("step    3", "v4", "reward 0.500 (avg 0.400, gain +0.100)", "wait 4.00 train 0.25"):
        assert part in line
