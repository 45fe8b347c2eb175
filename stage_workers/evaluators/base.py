"""The seam of evaluators: what they see of a session, and what they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from schemas.records import Status
from schemas.task import TaskSpec
from stage_workers.runtimes import Runtime


class EvaluatorError(Exception):
    """The evaluator could not grade (which is not a bad grade): no reward follows."""

    is_retriable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One named number, and what it was read off."""

    name: str
    value: float
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """What an evaluator sees: the task, the runtime as the harness left it, and how the run ended."""

    session_id: str
    task: TaskSpec
    runtime: Runtime
    status: Status
    exit_code: int | None
    evaluate_s: float


class Evaluator(Protocol):
    """Grades one session."""

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """The session's grades. Raises EvaluatorError when it can't be graded."""


class EvaluatorType(Protocol):
    """A class of evaluators, as the registry holds it."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a class's constant
        """Its name in task files."""

    @property
    def VERSION(self) -> str:  # noqa: N802  # a class's constant
        """The version of its rule."""

    def __call__(self, options: Mapping[str, object]) -> Evaluator:
        """Checks the options. Raises EvaluatorError, starting with the field's path."""


def check_options(name: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Refuses options that an evaluator doesn't have. Raises EvaluatorError."""
    for option in given:
        if option not in known:
            raise EvaluatorError(
                f"evaluator.options.{option}: the evaluator `{name}` has no such option; it knows: {', '.join(known)}"
            )


def text_option(given: Mapping[str, object], option: str, default: str | None = None) -> str:
    """A text among the options. Raises EvaluatorError when it is missing, empty or no text."""
    value = given.get(option, default)
    if not isinstance(value, str) or not value.strip():
        raise EvaluatorError(f"evaluator.options.{option}: must be a text that isn't empty")
    return value
