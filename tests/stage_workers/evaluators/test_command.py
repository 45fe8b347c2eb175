"""The two small evaluators: by how the run ended, and by a command."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import Status
from stage_workers import evaluators
from stage_workers.evaluators import EvaluatorError
from stage_workers.evaluators.command import verdict_of
from stage_workers.runtimes import LocalRuntime
from tests.stage_workers.evaluators.conftest import ContextMaker


@pytest.mark.parametrize(("status", "value"), [(Status.COMPLETED, 1.0), (Status.FAILED, 0.0), (Status.TIMEOUT, 0.0)])
async def test_session_completed(runtime: LocalRuntime, context: ContextMaker, status: Status, value: float) -> None:
    """1 for a run that completed, else 0."""
    (grade,) = await evaluators.get("session_completed", {}).evaluate(context(runtime, status=status))
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
async def test_command(runtime: LocalRuntime, context: ContextMaker, options: dict[str, Any], value: float) -> None:
    """By exit code or by the number printed last; the run's outcome is in the environment."""
    (grade,) = await evaluators.get("command", options | {"reward": "tests"}).evaluate(context(runtime, exit_code=3))
    assert (grade.name, grade.value) == ("tests", value)
    assert "exit_code" in grade.details


async def test_command_time_out(runtime: LocalRuntime, context: ContextMaker) -> None:
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


async def test_in_the_fresh_runtime(runtime: LocalRuntime, fresh: LocalRuntime, context: ContextMaker) -> None:
    """Where one was asked for the command runs there, and sees nothing that the agent left."""
    await runtime.upload("left", b"by the agent")
    evaluator = evaluators.get("command", {"command": "test ! -e left"})
    (there,) = await evaluator.evaluate(context(runtime, fresh))
    (here,) = await evaluator.evaluate(context(runtime))
    assert (there.value, here.value) == (1.0, 0.0)
    with pytest.raises(EvaluatorError, match="as the harness left it, and that one is gone"):
        await evaluator.evaluate(context(None))
