"""Metrics, their arithmetic, and how they are shown and kept. Pure, but for `write`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured number. `baseline` is what it is compared with (same unit), `ratio` how many times that it is.

    For what is *added* to a baseline (`added`), the ratio is (baseline + value) / baseline: how many times as long it takes.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None


def plain(name: str, value: float, unit: str) -> Metric:
    """A number that stands alone."""
    return Metric(name, value, unit)


def compared(name: str, value: float, unit: str, baseline: float) -> Metric:
    """A number beside its baseline; the ratio is value / baseline."""
    return Metric(name, value, unit, baseline, _ratio(value, baseline))


def added(name: str, total: float, unit: str, baseline: float) -> Metric:
    """What `total` has over its baseline; the ratio is total / baseline."""
    return Metric(name, total - baseline, unit, baseline, _ratio(total, baseline))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` (0 < share <= 1) of all values don't exceed.

    Always one of the values. Raises ValueError for no values or a share outside of the range.
    """
    if not values:
        raise ValueError("no values: nothing was measured")
    if not 0 < share <= 1:
        raise ValueError(f"a share of {share} isn't in (0, 1]")
    # Products like 0.07 * 100 come out a hair above the whole number that they are.
    rank = max(1, math.ceil(round(share * len(values), 9)))
    return sorted(values)[rank - 1]


def table(metrics: Iterable[Metric], title: str = "") -> Table:
    """The metrics as a table for people."""
    shown = Table(title=title or None, title_justify="left")
    shown.add_column("metric")
    for name in ("value", "unit", "baseline", "ratio"):
        shown.add_column(name, justify="left" if name == "unit" else "right")
    for metric in metrics:
        ratio = "" if metric.ratio is None else f"{metric.ratio:.2f} x"
        baseline = "" if metric.baseline is None else figure(metric.baseline)
        shown.add_row(metric.name, figure(metric.value), metric.unit, baseline, ratio)
    return shown


def figure(value: float) -> str:
    """A number with three digits that mean something, thousands parted."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits}f}"


def as_json(metrics: Iterable[Metric]) -> str:
    """The metrics by name: {name: {value, unit, baseline, ratio}}. Raises ValueError when a name stands twice."""
    by_name: dict[str, dict[str, object]] = {}
    for metric in metrics:
        if metric.name in by_name:
            raise ValueError(f"two metrics are called {metric.name}")
        by_name[metric.name] = {
            "value": metric.value,
            "unit": metric.unit,
            "baseline": metric.baseline,
            "ratio": metric.ratio,
        }
    return json.dumps(by_name, indent=2, allow_nan=False) + "\n"


def write(metrics: Iterable[Metric], path: Path) -> None:
    """Write the metrics whole, so that no reader sees half of them."""
    text = as_json(metrics)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def _ratio(value: float, baseline: float) -> float | None:
    return value / baseline if baseline else None
