"""Names, versions, places, and evaluators of other people."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any, ClassVar

import pytest

from schemas.records import SessionSpec
from schemas.task import EvaluatorSpec
from stage_workers import evaluators
from stage_workers.evaluators import EvaluationContext, EvaluatorError, Grade, registry


class Mine:
    """An evaluator of somebody else's."""

    NAME: ClassVar[str] = "mine"
    VERSION: ClassVar[str] = "7"

    def __init__(self, options: Mapping[str, object]) -> None:
        if options:
            raise EvaluatorError("evaluator.options: mine takes none")

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        return [Grade(name="mine", value=float(context.exit_code or 0))]


PATH = f"{__name__}:Mine"


def test_ours() -> None:
    """The evaluators that the project brings, each with a version."""
    ours = {"session_completed", "command", "test_on_output", "swebench", "harbor", "trajectory"}
    assert ours <= set(evaluators.names())
    assert all(evaluators.version_of(name) for name in ours)


def test_by_path() -> None:
    """Any class by `module:Class`; its version and its errors are its own."""
    assert evaluators.version_of(PATH) == "7"
    evaluators.check(EvaluatorSpec(name=PATH))
    with pytest.raises(EvaluatorError, match="mine takes none"):
        evaluators.check(EvaluatorSpec(name=PATH, options={"a": 1}))


def test_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed brings its own under a name."""
    point = metadata.EntryPoint(name="theirs", value=PATH, group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "_installed", lambda: {"theirs": point})
    assert "theirs" in evaluators.names()
    assert isinstance(evaluators.get("theirs", {}), Mine)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "no.such.module:Class"}, "can't be imported here: ModuleNotFoundError"),
        ({"name": "json:loads"}, "is no evaluator: it has no `NAME`"),
        ({"name": "nobody"}, "known are command, harbor, session_completed"),
        (
            {"name": "harbor", "fresh": True, "options": {"tests": {"test.sh": "x"}}},
            r"evaluator\.fresh: `harbor` looks",
        ),
        (
            {"name": "swebench", "fresh": False, "options": {"instance": {"FAIL_TO_PASS": ["a"]}}},
            r"evaluator\.fresh: `swebench` grades in a fresh runtime only",
        ),
    ],
)
def test_what_is_refused(spec: dict[str, Any], message: str) -> None:
    """Unknown names, classes that aren't evaluators, places that don't fit."""
    with pytest.raises(EvaluatorError, match=message):
        evaluators.check(EvaluatorSpec.model_validate(spec))


def test_a_module_that_ends_the_process() -> None:
    """A program that ends when it is imported is no evaluator, and doesn't end us."""
    with pytest.raises(EvaluatorError, match="can't be imported here: SystemExit"):
        evaluators.check(EvaluatorSpec(name="tests.stage_workers.evaluators.ends_at_once:Evaluator"))


def test_seconds_beyond_all_numbers() -> None:
    """A number of seconds that no clock knows is refused by its path."""
    for seconds in (10**400, float("inf"), float("nan"), 0):
        spec = EvaluatorSpec(name="trajectory", options={"function": "a:b", "timeout_s": seconds})
        with pytest.raises(EvaluatorError, match=r"^evaluator\.options\.timeout_s"):
            evaluators.check(spec)


NEEDED: dict[str, dict[str, Any]] = {
    "command": {"command": "true"},
    "test_on_output": {"command": "true", "expected": {"a": "PASSED"}},
    "swebench": {"instance": {"FAIL_TO_PASS": ["a"]}},
    "harbor": {"tests": {"test.sh": "true"}},
    "trajectory": {"function": "a:b"},
}
OTHER = {"text": True, "seconds": "soon", "texts": "one", "mapping": ["a"]}


@pytest.mark.parametrize(
    ("name", "option", "kind"),
    [
        (name, option, kind)
        for name in evaluators.names()
        for option, kind in (evaluators.options_of(name) or {}).items()
    ],
)
def test_every_option_holds_what_it_says(name: str, option: str, kind: str) -> None:
    """With what it needs an evaluator is taken; a value of another kind is refused by its option's path."""
    evaluators.validate(name, NEEDED.get(name, {}))
    with pytest.raises(EvaluatorError, match=rf"^evaluator\.options\.{option}: "):
        evaluators.validate(name, {**NEEDED.get(name, {}), option: OTHER[kind]})


def test_an_evaluator_that_does_not_say_what_it_takes() -> None:
    """Somebody else's needn't."""
    assert evaluators.options_of(PATH) is None


def test_who_gets_a_fresh_runtime() -> None:
    """Who always needs one, and who is asked for one."""
    specs = {
        "swebench": EvaluatorSpec(name="swebench"),
        "command": EvaluatorSpec(name="command"),
        "asked": EvaluatorSpec(name="command", fresh=True),
        "described": EvaluatorSpec.model_validate({"name": "command", "runtime": {"kind": "local"}}),
    }
    wanted = {name: evaluators.wants_fresh(spec) for name, spec in specs.items()}
    assert wanted == {"swebench": True, "command": False, "asked": True, "described": True}
    with pytest.raises(ValueError, match="fresh is false"):
        EvaluatorSpec.model_validate({"fresh": False, "runtime": {"kind": "local"}})


def rewards(*grades: Grade) -> list[Any]:
    common = {"session_id": "s", "lease_id": "l", "spec": SessionSpec(), "grader": "g", "grader_version": "1", "at": 1}
    return evaluators.rewards_of(grades, **common)


def test_grades_as_facts() -> None:
    """Rewards per trace are carried; equal names and numbers that aren't finite are refused."""
    (reward,) = rewards(Grade(name="a", value=1, trace_values=[0, 1]))
    assert (reward.value, reward.trace_rewards, reward.grader_version) == (1.0, [0.0, 1.0], "1")
    with pytest.raises(EvaluatorError, match="two rewards called 'a'"):
        rewards(Grade(name="a", value=1), Grade(name="a", value=2))
    with pytest.raises(EvaluatorError, match="must be finite"):
        rewards(Grade(name="a", value=0, trace_values=[float("inf")]))


def test_a_verdict_that_returns_is_a_fact_of_its_own() -> None:
    """Gradings have names, so the same value from another grading isn't taken for a repeat."""
    (first,) = rewards(Grade(name="a", value=1))
    (again,) = rewards(Grade(name="a", value=1))
    from dataclasses import replace

    assert first.event_id == again.event_id
    assert replace(first, run="later").event_id != first.event_id
