"""The check: recorded against computed log-probabilities, summed up by weight version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from compose.verify.spans import Deviation, Span, spans_of
from schemas.arrays import unpack_ids, unpack_logprobs
from schemas.records import Trace, Trajectory

OTHER_VERSION: Final = "another version"


class Scores(Protocol):
    """What computes log-probabilities; see `Scorer`."""

    context_length: int
    vocab_size: int

    def logprobs(self, ids: Sequence[int], positions: Sequence[int], divisors: Sequence[float]) -> list[float]:
        """The log-probabilities of the tokens at these positions."""
        ...


@dataclass(slots=True)
class VersionReport:
    """The tokens of one weight version."""

    checked: int = 0
    largest: float = 0.0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """The mean absolute difference; 0.0 when nothing was checked."""
        return self.total / self.checked if self.checked else 0.0


@dataclass(slots=True)
class Report:
    """What was checked. `unchecked` counts trained tokens by version and reason."""

    trajectories: int = 0
    traces: int = 0
    versions: dict[str, VersionReport] = field(default_factory=dict)
    unchecked: Counter[tuple[str, str]] = field(default_factory=Counter)
    deviations: list[Deviation] = field(default_factory=list)

    @property
    def checked(self) -> int:
        """Tokens that were checked."""
        return sum(v.checked for v in self.versions.values())

    def add(self, other: Report) -> None:
        """Take another report's numbers in."""
        self.trajectories += other.trajectories
        self.traces += other.traces
        for name, summary in other.versions.items():
            mine = self.versions.setdefault(name, VersionReport())
            mine.checked += summary.checked
            mine.total += summary.total
            mine.largest = max(mine.largest, summary.largest)
        self.unchecked.update(other.unchecked)
        self.deviations += other.deviations

    def to_json(self) -> dict[str, Any]:
        """The report for machines; every deviation by name."""
        versions = {
            name: {"checked": v.checked, "largest": v.largest, "mean": v.mean} for name, v in self.versions.items()
        }
        unchecked = [
            {"version": version, "reason": reason, "tokens": n}
            for (version, reason), n in sorted(self.unchecked.items())
        ]
        deviations = [
            {
                **asdict(one.span),
                "token": one.at,
                "token_id": one.token_id,
                "recorded": one.recorded,
                "computed": one.computed,
            }
            for one in self.deviations
        ]
        return {
            "trajectories": self.trajectories,
            "traces": self.traces,
            "versions": versions,
            "unchecked": unchecked,
            "deviations": deviations,
        }


def verify(
    trajectories: Iterable[Trajectory],
    sampling: Mapping[str, Mapping[str, Any]],
    scorer: Scores,
    *,
    version: str,
    tolerance: float,
    on_trace: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Check every trained token that `version` sampled; one that isn't within `tolerance` (a NaN never is) is a deviation."""
    report = Report()
    for trajectory in trajectories:
        report.trajectories += 1
        for trace in trajectory.traces:
            report.traces += 1
            _check(trajectory, trace, sampling, scorer, report, version=version, tolerance=tolerance)
            on_trace(report)
    return report


def _check(
    trajectory: Trajectory,
    trace: Trace,
    sampling: Mapping[str, Mapping[str, Any]],
    scorer: Scores,
    report: Report,
    *,
    version: str,
    tolerance: float,
) -> None:
    ids = unpack_ids(trace.prompt_ids + trace.response_ids).tolist()
    first = len(trace.prompt_ids) // 4
    spans: list[Span] = []
    for span in spans_of(trajectory, trace, sampling):
        reason = span.unchecked or ("" if span.version == version else OTHER_VERSION) or _misfit(ids, scorer)
        if reason:
            report.unchecked[span.version, reason] += span.end - span.start
        else:
            spans.append(span)
    places = [(span, at) for span in spans for at in range(span.start, span.end)]
    if not places:
        return
    computed = scorer.logprobs(ids, [first + at for _, at in places], [span.divisor for span, _ in places])
    recorded = unpack_logprobs(trace.logprobs)
    summary = report.versions.setdefault(version, VersionReport())
    for (span, at), value in zip(places, computed, strict=True):
        difference = abs(value - float(recorded[at]))
        summary.checked += 1
        summary.total += difference
        summary.largest = max(summary.largest, difference)
        if not difference <= tolerance:
            report.deviations.append(Deviation(span, at, ids[first + at], float(recorded[at]), value))


def _misfit(ids: list[int], scorer: Scores) -> str:
    if len(ids) > scorer.context_length:
        return f"longer than the model's context of {scorer.context_length}"
    return "an id outside the model's vocabulary" if max(ids) >= scorer.vocab_size else ""
