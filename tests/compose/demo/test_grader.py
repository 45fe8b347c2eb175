"""The demo's evaluator on real directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose.demo.grader import WrittenWord
from schemas.records import Status
from schemas.task import HarnessSpec, TaskSpec
from stage_workers.evaluators.base import EvaluationContext, EvaluatorError
from stage_workers.runtimes import LocalRuntime


@pytest.mark.parametrize(("content", "value"), [("ember", 1.0), ("ember\n", 1.0), ("amber", 0.2), (None, 0.0)])
async def test_the_file_that_the_harness_left_decides(tmp_path: Path, content: str | None, value: float) -> None:
    """The word, another word, no file."""
    runtime = LocalRuntime(tmp_path, "s", owner="test")
    await runtime.start()
    try:
        if content is not None:
            (Path(runtime.workdir) / "notes.txt").write_text(content)
        context = EvaluationContext(
            session_id="s",
            task=TaskSpec(instruction="-", harness=HarnessSpec(name="pi")),
            runtime=runtime,
            status=Status.COMPLETED,
            exit_code=0,
            evaluate_s=5,
        )
        (grade,) = await WrittenWord({"word": "ember", "file": "notes.txt"}).evaluate(context)
        assert (grade.name, grade.value) == ("reward", value)
    finally:
        await runtime.stop()


def test_options_are_checked() -> None:
    """A missing file or an unknown option is refused when the task is read, not when it is graded."""
    with pytest.raises(EvaluatorError, match="file"):
        WrittenWord({"word": "ember"})
    with pytest.raises(EvaluatorError, match="words"):
        WrittenWord({"word": "ember", "file": "f", "words": "x"})
