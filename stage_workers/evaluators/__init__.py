"""Evaluators: how a finished session is graded. A registry: a name, a version, and a class that checks its options."""

from __future__ import annotations

from stage_workers.evaluators.artifacts import ArtifactReference, Artifacts, references_in
from stage_workers.evaluators.base import EvaluationContext, Evaluator, EvaluatorError, EvaluatorType, Grade, OptionKind
from stage_workers.evaluators.registry import (
    check,
    get,
    names,
    options_of,
    place_of,
    validate,
    version_of,
    wants_fresh,
)
from stage_workers.evaluators.rewards import rewards_of

__all__ = [
    "ArtifactReference",
    "Artifacts",
    "EvaluationContext",
    "Evaluator",
    "EvaluatorError",
    "EvaluatorType",
    "Grade",
    "OptionKind",
    "check",
    "get",
    "names",
    "options_of",
    "place_of",
    "references_in",
    "rewards_of",
    "validate",
    "version_of",
    "wants_fresh",
]
