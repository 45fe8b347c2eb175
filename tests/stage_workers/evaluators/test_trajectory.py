"""`trajectory`: a person's function, in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.records import Trace, Trajectory
from stage_workers import evaluators
from stage_workers.evaluators import EvaluatorError
from stage_workers.evaluators.trajectory import grades_of
from stage_workers.runtimes.processes import is_alive
from tests.stage_workers.evaluators.conftest import ContextMaker

BUILT = Trajectory(session_id="s1", lease_id="l1", traces=[Trace(index=0), Trace(index=1, branch="sub_agent")])


async def built() -> Trajectory:
    """Stands for the wait until the assembler has built it."""
    return BUILT


def get(name: str, **options: Any) -> evaluators.Evaluator:
    return evaluators.get("trajectory", {"function": f"tests.stage_workers.evaluators.grading:{name}", **options})


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("one", {"arguments": {"bonus": 0.5}, "reward": "length"}, [("length", 2.5, None)]),
        ("named", {}, [("reward", 1.0, None), ("per_trace", 0.5, [0.5, 0.5])]),
        ("each", {}, [("reward", 0.5, [0.0, 1.0])]),
    ],
)
async def test_what_functions_may_return(
    context: ContextMaker, name: str, more: dict[str, Any], expected: list[Any]
) -> None:
    """A number, numbers by name, or one for each trace, whose mean is the outcome."""
    found = await get(name, **more).evaluate(context(None, trajectory=built))
    assert [(grade.name, grade.value, grade.trace_values) for grade in found] == expected


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("raising", {}, "KeyError: 'nothing here'"),
        ("hanging", {"timeout_s": 3}, "still running after 3 s"),
        ("words", {}, "'good' where a finite number was expected"),
        ("absent", {}, "AttributeError"),
    ],
)
async def test_functions_that_fail(context: ContextMaker, name: str, more: dict[str, Any], message: str) -> None:
    """What goes wrong there is the evaluator's error, with its words."""
    with pytest.raises(EvaluatorError, match=message):
        await get(name, **more).evaluate(context(None, trajectory=built))


def test_answers() -> None:
    """As many rewards as traces; nan and nothing are no answers."""
    with pytest.raises(EvaluatorError, match="1 rewards for 2 traces"):
        grades_of([1.0], "r", traces=2, details={})
    with pytest.raises(EvaluatorError, match="finite"):
        grades_of(float("nan"), "r", traces=1, details={})
    with pytest.raises(EvaluatorError, match="no reward"):
        grades_of({}, "r", traces=1, details={})


def test_bad_options() -> None:
    """The function's form is checked before anything is submitted."""
    with pytest.raises(EvaluatorError, match=r"options\.function: 'os\.path' isn't of the form module:function"):
        evaluators.validate("trajectory", {"function": "os.path"})


async def test_programs_that_a_function_starts(context: ContextMaker, tmp_path: Path) -> None:
    """What they print is no answer, and they end with it."""
    (grade,) = await get("with_a_program").evaluate(context(None, trajectory=built))
    assert grade.value == 2.0
    note = tmp_path / "pid"
    hanging = get("with_a_program", arguments={"note": str(note)}, timeout_s=5)
    with pytest.raises(EvaluatorError, match="still running after 5 s"):
        await hanging.evaluate(context(None, trajectory=built))
    async with asyncio.timeout(10):
        while is_alive(int(note.read_text("ascii"))):
            await asyncio.sleep(0.02)
