"""The reward curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_sink.reference.errors import TrainerError
from trainer_sink.reference.reports import average

SIZE_INCHES = (8.0, 4.5)


def draw_rewards(
    rewards: Sequence[float],
    path: Path,
    *,
    title: str = "mean reward per step",
    baseline: float | None = None,
    baseline_name: str = "baseline",
) -> Path:
    """Write a PNG: each step's mean reward, its moving average, and the baseline as a line.

    Raises TrainerError when matplotlib isn't installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise TrainerError(f"the reward curve needs {missing.name}: pip install 'polynya[train]'") from missing
    figure: Any = Figure(figsize=SIZE_INCHES, dpi=120, layout="constrained")  # no pyplot: nothing global, no display
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = list(range(1, len(rewards) + 1))
    axes.plot(steps, rewards, color="#9ecae1", marker="o", markersize=3, linewidth=1, label="step")
    averages = [average(rewards[:n]) for n in steps]
    axes.plot(steps, averages, color="#08519c", linewidth=2, label="mean of 5")
    if baseline is not None:
        axes.axhline(baseline, color="#969696", linestyle="--", linewidth=1, label=f"{baseline_name} {baseline:.2f}")
    axes.set(xlabel="step", ylabel="reward", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    figure.savefig(aside, format="png")
    aside.replace(path)
    return path
