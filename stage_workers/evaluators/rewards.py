"""Grades as facts: which reward records a grading gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from schemas import ids
from schemas.records import Reward, SessionSpec
from stage_workers.evaluators.base import EvaluatorError, Grade


def rewards_of(
    grades: Sequence[Grade],
    *,
    session_id: str,
    lease_id: str,
    spec: SessionSpec,
    grader: str,
    grader_version: str,
    at: int,
    artifacts: Mapping[str, Any] | None = None,
    provenance: str = "evaluator",
    run: str = "",
) -> list[Reward]:
    """One record for each grade.

    Raises:
        EvaluatorError: two grades share a name, or a number isn't finite.
    """
    options = orjson.dumps(spec.builder_options or {}, option=orjson.OPT_SORT_KEYS).decode()
    seen: set[str] = set()
    for grade in grades:
        if grade.name in seen:
            raise EvaluatorError(f"the evaluator gave two rewards called {grade.name!r}")
        seen.add(grade.name)
        for value in (grade.value, *(grade.trace_values or ())):
            if not math.isfinite(value):
                raise EvaluatorError(f"the evaluator gave {value} as the reward {grade.name!r}: it must be finite")
    return [
        Reward(
            session_id=session_id,
            lease_id=lease_id,
            trajectory_id=ids.trajectory_id(session_id, lease_id, spec.builder, options),
            name=grade.name,
            value=float(grade.value),
            trace_rewards=None if grade.trace_values is None else [float(value) for value in grade.trace_values],
            grader=grader,
            grader_version=grader_version,
            provenance=provenance,
            details={**grade.details, **({"artifacts": dict(artifacts)} if artifacts else {})},
            at=at,
            run=run,
        )
        for grade in grades
    ]
