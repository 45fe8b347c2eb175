"""`test_on_output`: exactly the expected tests, each as expected."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from bus.memory import MemoryBlobStore
from schemas.records import Boundary
from schemas.task import Step
from stage_workers import evaluators
from stage_workers.evaluators import Artifacts, EvaluatorError, references_in
from stage_workers.evaluators.log_parsers import pytest as pytest_log
from stage_workers.evaluators.test_on_output import differences
from stage_workers.runtimes import LocalRuntime
from stage_workers.steps import run_steps
from tests.stage_workers.evaluators.conftest import ContextMaker
from tests.stage_workers.evaluators.repository import RIGHT, setup_step

LOG = "printf 'PASSED a.py::one\\nFAILED a.py::two - oh\\n'"
EXPECTED = {"a.py::one": "PASSED", "a.py::two": "FAILED"}


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({"expected": EXPECTED}, 1.0),
        ({"expected": json.dumps(EXPECTED)}, 1.0),
        ({"expected": EXPECTED | {"a.py::two": "PASSED"}}, 0.0),
        ({"expected": {"a.py::one": "PASSED"}}, 0.0),
        ({"expected": {"a.py::one": "PASSED"}, "match": "subset"}, 1.0),
        ({"expected": {"one": "PASSED", "two": "FAILED"}, "log_parser": "pytest_dotted"}, 1.0),
    ],
)
async def test_in_the_session_s_runtime(
    runtime: LocalRuntime, context: ContextMaker, more: dict[str, Any], value: float
) -> None:
    """By default the two maps are equal; a subset is enough where the task says so."""
    evaluator = evaluators.get("test_on_output", {"command": LOG, **more})
    (grade,) = await evaluator.evaluate(context(runtime))
    assert grade.value == value


async def test_in_a_fresh_runtime(repositories: tuple[LocalRuntime, LocalRuntime], context: ContextMaker) -> None:
    """There the command runs on the agent's patch; without one the grade is 0."""
    agent, fresh = repositories
    command = (
        f"{sys.executable} -c \"from shapes import area; print(['FAILED', 'PASSED'][area(3, 4) == 12], 'a.py::area')\""
    )
    evaluator = evaluators.get("test_on_output", {"command": command, "expected": {"a.py::area": "PASSED"}})
    (grade,) = await evaluator.evaluate(context(agent, fresh))
    assert (grade.value, grade.details["empty_generation"]) == (0.0, True)
    await agent.upload("shapes.py", RIGHT.encode())
    (grade,) = await evaluator.evaluate(context(agent, fresh))
    assert (grade.value, grade.details["differences"]) == (1.0, {})


async def test_from_the_kept_patch(
    repositories: tuple[LocalRuntime, LocalRuntime], store: MemoryBlobStore, context: ContextMaker
) -> None:
    """Once the session's runtime is gone, the patch that its grading kept stands for it."""
    agent, fresh = repositories
    evaluator = evaluators.get("test_on_output", {"command": LOG, "expected": EXPECTED})
    await agent.upload("shapes.py", RIGHT.encode())
    around = context(agent, fresh)
    await evaluator.evaluate(around)
    await fresh.stop()
    await fresh.start()
    await run_steps(fresh, [Step.model_validate(setup_step())], "prepare", Boundary.SANDBOX)
    kept = references_in({"artifacts": around.artifacts.details})
    (grade,) = await evaluator.evaluate(context(None, fresh, artifacts=Artifacts(store, "s1", earlier=kept)))
    assert grade.value == 1.0
    assert await fresh.download("shapes.py") == RIGHT.encode()
    with pytest.raises(EvaluatorError, match="the session's patch can't be had any more"):
        await evaluator.evaluate(context(None, fresh))
    with pytest.raises(EvaluatorError, match="that one is gone; what works from what was kept still grades"):
        await evaluator.evaluate(context(None))


async def test_no_runner(runtime: LocalRuntime, context: ContextMaker) -> None:
    """A command that isn't there is no bad grade."""
    evaluator = evaluators.get("test_on_output", {"command": "nothing-like-it", "expected": EXPECTED})
    with pytest.raises(EvaluatorError, match="exit code 127"):
        await evaluator.evaluate(context(runtime))


def test_differences_name_both_sides() -> None:
    """Expected and found, None for a test that isn't there."""
    assert differences({"a": "PASSED", "c": "PASSED"}, {"a": "FAILED", "b": "PASSED"}, is_exact=True) == {
        "a": ["FAILED", "PASSED"],
        "b": ["PASSED", None],
        "c": [None, "PASSED"],
    }


@pytest.mark.parametrize("expected", [None, {}, "[1]", "{oops"])
def test_bad_expectations(expected: object) -> None:
    """What is expected must be a mapping."""
    with pytest.raises(EvaluatorError, match=r"evaluator\.options\.expected"):
        evaluators.validate("test_on_output", {"command": "x", "expected": expected})


def test_names_with_blanks() -> None:
    """A name with blanks is one test, although a parser also knows it by its first word; another test is another."""
    whole, cut = "a.py::t[x y]", "a.py::t[x"
    found = pytest_log(f"PASSED {whole}\n")
    assert differences(found, {whole: "PASSED"}, is_exact=True) == {}
    assert differences(found, {cut: "PASSED"}, is_exact=True) == {}
    assert differences(found, {whole: "FAILED"}, is_exact=True) == {whole: ["FAILED", "PASSED"]}
    more = pytest_log(f"PASSED {whole}\nPASSED a.py::other\n")
    assert differences(more, {whole: "PASSED"}, is_exact=True) == {"a.py::other": [None, "PASSED"]}


def test_expectations_that_cannot_be_read() -> None:
    """A text nested deeper than any reader goes is no JSON."""
    with pytest.raises(EvaluatorError, match="is no JSON"):
        evaluators.get("test_on_output", {"command": LOG, "expected": "[" * 100_000})
