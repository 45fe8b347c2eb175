"""Evaluators by name: our own, those that installed packages bring, and any class by `module:Class`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any, cast

from schemas.task import EvaluatorSpec
from stage_workers.evaluators.base import Evaluator, EvaluatorError, EvaluatorType, OptionKind, Place
from stage_workers.evaluators.command import CommandEvaluator
from stage_workers.evaluators.harbor import HarborEvaluator
from stage_workers.evaluators.session_completed import SessionCompletedEvaluator
from stage_workers.evaluators.swebench import SwebenchEvaluator
from stage_workers.evaluators.test_on_output import TestOnOutputEvaluator
from stage_workers.evaluators.trajectory import TrajectoryEvaluator

ENTRY_POINTS = "polynya.evaluators"
"""The entry point group of packages that bring evaluators: NAME = "module:Class"."""

_KINDS: tuple[EvaluatorType, ...] = (
    SessionCompletedEvaluator,
    CommandEvaluator,
    TestOnOutputEvaluator,
    SwebenchEvaluator,
    HarborEvaluator,
    TrajectoryEvaluator,
)
_REGISTRY: Mapping[str, EvaluatorType] = {kind.NAME: kind for kind in _KINDS}


def names() -> list[str]:
    """The evaluators that there are: ours, and those of installed packages."""
    return sorted({*_REGISTRY, *_installed()})


def get(name: str, options: Mapping[str, object]) -> Evaluator:
    """The evaluator of that name, with its options checked.

    Raises:
        EvaluatorError: unknown name, or an option that it doesn't take; the text starts with the field's path.
    """
    return type_of(name)(options)


def validate(name: str, options: Mapping[str, object]) -> None:
    """Raises EvaluatorError as `get` does."""
    get(name, options)


def check(spec: EvaluatorSpec) -> None:
    """What a task file's reader calls before it submits: name, options and place. Raises as `get`."""
    validate(spec.name, spec.options)
    place = place_of(spec.name)
    if place == "fresh" and spec.fresh is False:
        raise EvaluatorError(f"evaluator.fresh: `{spec.name}` grades in a fresh runtime only; drop `fresh: false`")
    if place == "session" and (spec.fresh or spec.runtime is not None):
        raise EvaluatorError(
            f"evaluator.fresh: `{spec.name}` looks at the runtime as the harness left it; drop `fresh` and `runtime`"
        )


def wants_fresh(spec: EvaluatorSpec) -> bool:
    """Whether a fresh runtime is to be prepared. Raises EvaluatorError for an unknown name."""
    place = place_of(spec.name)
    return place == "fresh" or (place == "either" and bool(spec.fresh or spec.runtime is not None))


def place_of(name: str) -> Place:
    """Where an evaluator grades. Raises EvaluatorError for an unknown name."""
    return cast("Place", getattr(type_of(name), "PLACE", "either"))


def options_of(name: str) -> Mapping[str, OptionKind] | None:
    """What an evaluator takes, and what each option holds; None where it doesn't say. Raises EvaluatorError for an unknown name."""
    found = getattr(type_of(name), "OPTIONS", None)
    return cast("Mapping[str, OptionKind]", found) if isinstance(found, Mapping) else None


def version_of(name: str) -> str:
    """The version of an evaluator's rule, which rewards carry. Raises EvaluatorError for an unknown name."""
    return type_of(name).VERSION


def type_of(name: str) -> EvaluatorType:
    """The class behind a name. Raises EvaluatorError where there is none, or it can't be imported."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    if ":" in name:
        module, _, attribute = name.partition(":")
        return _loaded(name, lambda: getattr(importlib.import_module(module), attribute))
    found = _installed().get(name)
    if found is None:
        raise EvaluatorError(
            f"evaluator.name: there is no evaluator `{name}`; known are {', '.join(names())}, and any `module:Class`"
        )
    return _loaded(name, found.load)


@cache
def _installed() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def _loaded(name: str, load: Callable[[], Any]) -> EvaluatorType:
    try:
        kind = load()
    except (
        Exception,
        SystemExit,
    ) as error:  # somebody else's module: whatever it raises when imported is its own error
        raise EvaluatorError(f"evaluator.name: `{name}` can't be imported here: {error!r}") from error
    for attribute in ("NAME", "VERSION", "evaluate"):
        if not hasattr(kind, attribute):
            raise EvaluatorError(f"evaluator.name: `{name}` is no evaluator: it has no `{attribute}`")
    return cast("EvaluatorType", kind)
