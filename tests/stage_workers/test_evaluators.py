"""Evaluators: the registry and the two that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.records import Status
from schemas.task import TaskSpec
from stage_workers import evaluators
from stage_workers.evaluators import EvaluationContext, EvaluatorError
from stage_workers.evaluators.command import verdict_of
from stage_workers.runtimes import LocalRuntime
from tests.stage_workers.world import task


@pytest.fixture
async def runtime(tmp_path: Path):
    place = LocalRuntime(tmp_path, "one", owner="tests", grace_s=0.1)
    await place.start()
    yield place
    await place.stop()


def context(runtime: LocalRuntime, status: Status = Status.COMPLETED, evaluate_s: float = 20) -> EvaluationContext:
    spec = TaskSpec.model_validate(task())
    return EvaluationContext(
        session_id="s1", task=spec, runtime=runtime, status=status, exit_code=3, evaluate_s=evaluate_s
    )


@pytest.mark.parametrize(("status", "value"), [(Status.COMPLETED, 1.0), (Status.FAILED, 0.0), (Status.TIMEOUT, 0.0)])
async def test_session_completed(runtime: LocalRuntime, status: Status, value: float) -> None:
    """1 for a run that completed, else 0."""
    (grade,) = await evaluators.get("session_completed", {}).evaluate(context(runtime, status))
    assert (grade.name, grade.value) == ("reward", value)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"command": "true"}, 1.0),
        ({"command": "exit 9"}, 0.0),
        ({"command": "echo words; echo 0.25", "score": "printed"}, 0.25),
        ({"command": 'test "$POLYNYA_STATUS $POLYNYA_EXIT_CODE $POLYNYA_SESSION_ID" = "completed 3 s1"'}, 1.0),
    ],
)
async def test_command(runtime: LocalRuntime, options: dict[str, Any], value: float) -> None:
    """By exit code or by the number printed last; the run's outcome is in the environment."""
    (grade,) = await evaluators.get("command", options | {"reward": "tests"}).evaluate(context(runtime))
    assert (grade.name, grade.value) == ("tests", value)
    assert "exit_code" in grade.details


async def test_command_time_out(runtime: LocalRuntime) -> None:
    """A command that isn't done in time is no bad grade: it is none."""
    with pytest.raises(EvaluatorError, match=r"still running after 0\.2 s: at work"):
        await evaluators.get("command", {"command": "echo at work; sleep 60"}).evaluate(
            context(runtime, evaluate_s=0.2)
        )


@pytest.mark.parametrize("output", ["", "nan", "inf", "many", "1\nmany"])
def test_no_number(output: str) -> None:
    """Only a finite number counts as one."""
    with pytest.raises(EvaluatorError, match="no finite number"):
        verdict_of(0, output, {"score": "printed"})


def test_failed_printer() -> None:
    """A command that fails while it should print is the evaluator's failure, even when it printed something."""
    with pytest.raises(EvaluatorError, match="exited with 2 instead of printing a number"):
        verdict_of(2, "1.0", {"score": "printed"})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nobody", {}, r"evaluator\.name: there is no evaluator `nobody`; known are command, session_completed"),
        ("command", {}, r"evaluator\.options\.command: must be a text"),
        ("command", {"command": "x", "score": "guess"}, r"evaluator\.options\.score: must be exit_code or printed"),
        ("command", {"command": "x", "colour": 1}, r"evaluator\.options\.colour: .* has no such option"),
        ("session_completed", {"command": "x"}, r"evaluator\.options\.command: .* has no such option"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    """Each error begins with the field's path."""
    with pytest.raises(EvaluatorError, match=message):
        evaluators.validate(name, options)
