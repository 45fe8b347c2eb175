"""Which tokens of a trajectory can be checked, and how each was sampled. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.records import Trace, Trajectory, TurnSpan

GREEDY_BELOW: Final = 1e-6
"""Engines sample greedily below this temperature, and then report log-probabilities without one."""

RAW: Final = "raw"
CHECKABLE_MODES: Final = (RAW, "temperature")
"""Distributions that a forward pass gives: before the temperature, or after it; after a cut by top_p or top_k isn't one."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of a trace's response that one version sampled in one call.

    `divisor` is what the logits were divided by. `unchecked` says why they can't be checked ('': they can).
    """

    session_id: str
    trace: int
    completion_id: str
    start: int
    end: int
    version: str
    divisor: float
    unchecked: str = ""


@dataclass(frozen=True, slots=True)
class Deviation:
    """One token whose recorded log-probability isn't the model's."""

    span: Span
    at: int
    token_id: int
    recorded: float
    computed: float


def spans_of(trajectory: Trajectory, trace: Trace, sampling: Mapping[str, Mapping[str, Any]]) -> Iterator[Span]:
    """The trained spans of a trace; `sampling` is each call's effective sampling by completion id."""
    for turn in trace.turns:
        if not turn.is_trained:
            continue
        known = sampling.get(turn.completion_id)
        for start, end, version in _versions(turn):
            yield Span(
                session_id=trajectory.session_id,
                trace=trace.index,
                completion_id=turn.completion_id,
                start=turn.start + start,
                end=turn.start + end,
                version=version,
                divisor=_divisor(trajectory.logprobs_mode, known or {}),
                unchecked=_why_not(trajectory.logprobs_mode, known),
            )


def _versions(turn: TurnSpan) -> Iterator[tuple[int, int, str]]:
    if not turn.version_spans:
        yield 0, turn.end - turn.start, ""
    for span in turn.version_spans:
        yield span.start, span.end, span.version


def _why_not(mode: str, sampling: Mapping[str, Any] | None) -> str:
    if mode not in CHECKABLE_MODES:
        return f"logprobs_mode {mode or 'unknown'}"
    return "sampling unknown" if sampling is None and mode != RAW else ""


def _divisor(mode: str, sampling: Mapping[str, Any]) -> float:
    temperature = sampling.get("temperature")
    if mode == RAW or temperature is None or float(temperature) < GREEDY_BELOW:
        return 1.0
    return float(temperature)
