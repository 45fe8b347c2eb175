"""The seam of evaluators: what they see of a session, and what they give."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from schemas.records import Status, Trajectory
from schemas.task import TaskSpec
from stage_workers.evaluators.artifacts import Artifacts
from stage_workers.runtimes import Runtime

Place = Literal["session", "fresh", "either"]
"""Where an evaluator grades: in the runtime as the harness left it, in one of its own, or where the task says."""


OptionKind = Literal["text", "seconds", "texts", "mapping"]
"""What an option holds, as the functions below read it."""


class EvaluatorError(Exception):
    """The evaluator could not grade (which is not a bad grade): no reward follows."""

    is_retriable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One named number, and what it was read off; `trace_values` has one number for each trace of the trajectory, in order."""

    name: str
    value: float
    details: Mapping[str, object] = field(default_factory=dict)
    trace_values: Sequence[float] | None = None


async def no_trajectory() -> Trajectory:
    """Stands where nobody can tell a trajectory. Raises EvaluatorError."""
    raise EvaluatorError("there is no trajectory to be had here")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """What an evaluator sees: the task, how the run ended, and the places and values that it may ask for.

    `runtime` is the session's as the harness left it; None when a session that is over is graded again. `fresh` is the
    evaluator's own, prepared; None where none was asked for. `trajectory()` waits until it is built.
    """

    session_id: str
    task: TaskSpec
    runtime: Runtime | None
    status: Status
    exit_code: int | None
    evaluate_s: float
    fresh: Runtime | None = None
    artifacts: Artifacts = field(default_factory=Artifacts)
    trajectory: Callable[[], Awaitable[Trajectory]] = no_trajectory

    @property
    def left_runtime(self) -> Runtime:
        """The runtime as the harness left it. Raises EvaluatorError when it is gone."""
        if self.runtime is None:
            raise EvaluatorError(
                "this evaluator looks at the runtime as the harness left it, and that one is gone; what works from what was "
                "kept still grades: session_completed, trajectory, swebench, test_on_output in a fresh runtime"
            )
        return self.runtime

    @property
    def place(self) -> Runtime:
        """Where to grade: the fresh runtime where there is one, else the session's. Raises EvaluatorError."""
        return self.fresh or self.left_runtime

    @property
    def own_runtime(self) -> Runtime:
        """The fresh runtime. Raises EvaluatorError where none was prepared."""
        if self.fresh is None:
            raise EvaluatorError("this evaluator needs a fresh runtime, and none was prepared")
        return self.fresh


class Evaluator(Protocol):
    """Grades one session."""

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """The session's grades. Raises EvaluatorError when it can't be graded."""


class EvaluatorType(Protocol):
    """A class of evaluators, as the registry holds it.

    A class without `PLACE` grades in the session's runtime or where asked; one with `OPTIONS`, kinds by name, says what it takes.
    """

    @property
    def NAME(self) -> str:  # noqa: N802  # a class's constant
        """Its name in task files."""

    @property
    def VERSION(self) -> str:  # noqa: N802  # a class's constant
        """The version of its rule."""

    def __call__(self, options: Mapping[str, object]) -> Evaluator:
        """Checks the options. Raises EvaluatorError, starting with the field's path."""


def check_options(name: str, given: Mapping[str, object], known: Collection[str]) -> None:
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


def choice_option(given: Mapping[str, object], option: str, choices: Sequence[str]) -> str:
    """One of some words; the first is the default. Raises EvaluatorError."""
    value = given.get(option, choices[0])
    if value not in choices:
        raise EvaluatorError(f"evaluator.options.{option}: must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def seconds_option(given: Mapping[str, object], option: str, default: float) -> float:
    """A number of seconds above 0. Raises EvaluatorError."""
    value = given.get(option, default)
    # JSON's whole numbers may be larger than any float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise EvaluatorError(f"evaluator.options.{option}: must be a number of seconds above 0, not {value!r}")
    return float(value)


def texts_option(given: Mapping[str, object], option: str, default: Sequence[str] = ()) -> list[str]:
    """A list of texts. Raises EvaluatorError."""
    value = given.get(option, list(default))
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise EvaluatorError(f"evaluator.options.{option}: must be a list of texts")
    return [str(item) for item in value]


def mapping_option(given: Mapping[str, object], option: str, *, required: bool = False) -> dict[str, object]:
    """A mapping with texts as keys. Raises EvaluatorError."""
    value = given.get(option, None if required else {})
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise EvaluatorError(f"evaluator.options.{option}: must be a mapping")
    return dict(value)


def bytes_of(text: str, where: str) -> bytes:
    """A text as UTF-8. Raises EvaluatorError, starting with `where`, for half a character: JSON can spell it, no file can hold it."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EvaluatorError(f"{where}: holds half a character at {error.start}") from error
