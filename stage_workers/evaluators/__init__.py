"""Evaluators: how a finished session is graded. A small registry: a name, a version, and a factory that checks the options."""

from __future__ import annotations

from collections.abc import Mapping

from stage_workers.evaluators.base import EvaluationContext, Evaluator, EvaluatorError, EvaluatorType, Grade
from stage_workers.evaluators.command import CommandEvaluator
from stage_workers.evaluators.session_completed import SessionCompletedEvaluator

_KINDS: tuple[EvaluatorType, ...] = (SessionCompletedEvaluator, CommandEvaluator)
_REGISTRY: Mapping[str, EvaluatorType] = {kind.NAME: kind for kind in _KINDS}

__all__ = ["EvaluationContext", "Evaluator", "EvaluatorError", "Grade", "get", "names", "validate", "version_of"]


def names() -> list[str]:
    """The evaluators that there are."""
    return sorted(_REGISTRY)


def get(name: str, options: Mapping[str, object]) -> Evaluator:
    """The evaluator of that name, with its options checked.

    Raises:
        EvaluatorError: unknown name, or an option that it doesn't take; the text starts with the field's path.
    """
    kind = _REGISTRY.get(name)
    if kind is None:
        raise EvaluatorError(f"evaluator.name: there is no evaluator `{name}`; known are {', '.join(names())}")
    return kind(options)


def validate(name: str, options: Mapping[str, object]) -> None:
    """What a task file's reader calls before it submits. Raises as `get`."""
    get(name, options)


def version_of(name: str) -> str:
    """The version of an evaluator's rule, which rewards carry."""
    return _REGISTRY[name].VERSION
