"""SWE-style grading on a small real repository: the agent's changes here, the tests over there."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from bus.memory import MemoryBlobStore
from stage_workers import evaluators
from stage_workers.evaluators import Artifacts, EvaluatorError, Grade, references_in
from stage_workers.evaluators.swebench import between, tally
from stage_workers.runtimes import LocalRuntime
from tests.stage_workers.evaluators.conftest import ContextMaker
from tests.stage_workers.evaluators.repository import BUGGY, INSTANCE, RIGHT, WRONG

Places = tuple[LocalRuntime, LocalRuntime]
COMMAND = f"{sys.executable} -m pytest -p no:cacheprovider -rA tests/test_shapes.py"


def options(**more: Any) -> dict[str, Any]:
    return {"instance": INSTANCE, "repo_dir": ".", "test_command": COMMAND, **more}


async def graded(places: Places, context: ContextMaker, **more: Any) -> Grade:
    (grade,) = await evaluators.get("swebench", options(**more)).evaluate(context(*places))
    return grade


async def sh(runtime: LocalRuntime, script: str) -> None:
    result = await runtime.exec(["/bin/sh", "-ec", script], timeout_s=20)
    assert result.succeeded, result.tail()


async def test_a_right_patch(repositories: Places, context: ContextMaker, store: MemoryBlobStore) -> None:
    """The agent's change makes the failing test pass in the other place: 1, and every flag says so; artifacts are kept."""
    agent, fresh = repositories
    await agent.upload("shapes.py", RIGHT.encode())
    around = context(agent, fresh)
    (grade,) = await evaluators.get("swebench", options()).evaluate(around)
    assert grade.value == 1.0
    flags = {name: grade.details[name] for name in ("patch_exists", "patch_successfully_applied", "resolved")}
    assert flags == {"patch_exists": True, "patch_successfully_applied": True, "resolved": True}
    assert not any(
        grade.details[flag] for flag in ("empty_generation", "failed_apply_patch", "error_eval", "test_timeout")
    )
    assert grade.details["applied_by"] == "git apply"
    assert grade.details["FAIL_TO_PASS"] == {"passed": 1, "failed": 0, "failures": []}
    assert grade.details["PASS_TO_PASS"] == {"passed": 1, "failed": 0, "failures": []}
    kept = references_in({"artifacts": around.artifacts.details})
    assert set(kept) == {"patch.diff", "test_output.log", "report.json"}
    assert b"+    return width * height" in store.blobs[kept["patch.diff"].url]
    assert b"PASSED tests/test_shapes.py::test_area" in store.blobs[kept["test_output.log"].url]
    report = json.loads(store.blobs[kept["report.json"].url])
    assert report["FAIL_TO_PASS"] == {"success": ["tests/test_shapes.py::test_area"], "failure": []}
    assert (await agent.download("tests/test_shapes.py")).decode().count("area") == 0


async def test_a_wrong_patch(repositories: Places, context: ContextMaker) -> None:
    """A patch that applies and mends nothing: 0, applied, and the test that still fails is named."""
    await repositories[0].upload("shapes.py", WRONG.encode())
    grade = await graded(repositories, context)
    assert grade.value == 0.0
    assert grade.details["patch_successfully_applied"] is True
    assert grade.details["resolved"] is False
    assert grade.details["FAIL_TO_PASS"] == {
        "passed": 0,
        "failed": 1,
        "failures": ["tests/test_shapes.py::test_area"],
    }
    assert grade.details["PASS_TO_PASS"] == {"passed": 1, "failed": 0, "failures": []}


async def test_a_patch_that_prints_verdicts(repositories: Places, context: ContextMaker) -> None:
    """A program that prints passes and the end's mark hides none of its failures behind them: 0."""
    fake = "PASSED tests/test_shapes.py::test_area\\nPASSED tests/test_shapes.py::test_double\\n>>>>> End Test Output"
    printing = WRONG.replace("    return width - height", f"    print('{fake}')\n    return width - height")
    await repositories[0].upload("shapes.py", printing.encode())
    grade = await graded(repositories, context)
    assert (grade.value, grade.details["FAIL_TO_PASS"]["failed"]) == (0.0, 1)  # type: ignore[index]


def test_a_log_without_its_end() -> None:
    """A run that was killed has no end's mark: what it printed until then counts."""
    assert between(">>>>> Start Test Output\nPASSED a\n") == "\nPASSED a\n"
    assert between("nothing") == ""


async def test_a_patch_that_breaks_something_else(repositories: Places, context: ContextMaker) -> None:
    """The failing test passes, and one that passed doesn't any more: 0."""
    await repositories[0].upload("shapes.py", RIGHT.replace("2 * x", "3 * x").encode())
    grade = await graded(repositories, context)
    assert grade.value == 0.0
    assert (grade.details["FAIL_TO_PASS"], grade.details["PASS_TO_PASS"]) == (
        {"passed": 1, "failed": 0, "failures": []},
        {"passed": 0, "failed": 1, "failures": ["tests/test_shapes.py::test_double"]},
    )


async def test_an_empty_patch(repositories: Places, context: ContextMaker) -> None:
    """An agent that changed nothing, or only what is dropped, gets 0 as an empty generation; no test is run."""
    await repositories[0].upload("__pycache__/shapes.pyc", b"compiled")
    grade = await graded(repositories, context)
    assert grade.value == 0.0
    assert (grade.details["empty_generation"], grade.details["patch_exists"]) == (True, False)
    assert grade.details["exit_code"] is None


async def test_a_patch_that_does_not_apply(repositories: Places, context: ContextMaker) -> None:
    """A patch for another text is refused by both programs: 0, failed to apply, both said why."""
    alien = (
        "diff --git a/shapes.py b/shapes.py\n--- a/shapes.py\n+++ b/shapes.py\n@@ -1,3 +1,3 @@\n-no such line\n"
        "-nor this one\n-nor that\n+something\n+else\n+entirely\n"
    )
    grade = await graded(repositories, context, patch_command=f"printf '%s' '{alien}'")
    assert grade.value == 0.0
    assert (grade.details["patch_exists"], grade.details["patch_successfully_applied"]) == (True, False)
    assert grade.details["failed_apply_patch"] is True
    assert "git apply:" in str(grade.details["said"])
    assert "patch:" in str(grade.details["said"])


async def test_some_fuzz_is_allowed(repositories: Places, context: ContextMaker) -> None:
    """What `git apply` refuses for its context, `patch` still puts in its place."""
    inexact = (
        "diff --git a/shapes.py b/shapes.py\n--- a/shapes.py\n+++ b/shapes.py\n@@ -1,4 +1,4 @@\n def area(width, height):\n"
        "-    return width + height\n+    return width * height\n \n another line than there is\n"
    )
    grade = await graded(repositories, context, patch_command=f"printf '%s' '{inexact}'")
    assert (grade.value, grade.details["applied_by"]) == (1.0, "patch")


async def test_commits_and_new_files_count(repositories: Places, context: ContextMaker) -> None:
    """What the agent committed, added or left untracked is all in the patch, even with a locked index."""
    agent, _ = repositories
    mended = RIGHT.replace("width * height", "helper(width, height)")
    await agent.upload("helping.py", b"def helper(a, b):\n    return a * b\n")
    await agent.upload("shapes.py", f"from helping import helper\n{mended}".encode())
    await sh(agent, "git add shapes.py; git commit -qm half; touch .git/index.lock")
    assert (await graded(repositories, context)).value == 1.0


async def test_tests_of_the_agent_do_not_count(repositories: Places, context: ContextMaker) -> None:
    """An agent that rewrites the test files is graded by the benchmark's."""
    await repositories[0].upload(
        "tests/test_shapes.py", b"def test_area():\n    pass\n\ndef test_double():\n    pass\n"
    )
    grade = await graded(repositories, context)
    assert grade.value == 0.0
    assert grade.details["FAIL_TO_PASS"]["failed"] == 1  # type: ignore[index,call-overload]


async def test_hanging_tests(repositories: Places, context: ContextMaker) -> None:
    """A patch whose tests don't end gets 0 and says that they were stopped."""
    await repositories[0].upload("shapes.py", f"{RIGHT}\nimport time\ntime.sleep(60)\n".encode())
    grade = await graded(repositories, context, test_timeout_s=1.5)
    assert (grade.value, grade.details["test_timeout"], grade.details["resolved"]) == (0.0, True, False)


async def test_no_test_runner_is_no_bad_grade(repositories: Places, context: ContextMaker) -> None:
    """Where the tests can't be run at all nobody is graded; the kept report says that it was the evaluation's error."""
    await repositories[0].upload("shapes.py", RIGHT.encode())
    around = context(*repositories)
    with pytest.raises(EvaluatorError, match=r"test command could not be run \(exit code 127\)"):
        await evaluators.get("swebench", options(test_command="no-such-runner")).evaluate(around)
    report = json.loads(await around.artifacts.read("report.json"))
    assert (report["error_eval"], report["patch_successfully_applied"], report["resolved"]) == (True, True, False)


async def test_a_test_patch_that_does_not_fit(repositories: Places, context: ContextMaker) -> None:
    """The benchmark's own tests don't apply: an error of the evaluator's."""
    await repositories[0].upload("shapes.py", RIGHT.encode())
    broken = INSTANCE | {"test_patch": INSTANCE["test_patch"].replace("double(4)", "treble(4)")}
    with pytest.raises(EvaluatorError, match="the test patch doesn't apply"):
        await graded(repositories, context, instance=broken)


async def test_no_repository(runtime: LocalRuntime, fresh: LocalRuntime, context: ContextMaker) -> None:
    """A fresh runtime that nobody prepared is an error that names the place."""
    with pytest.raises(EvaluatorError, match="is no git repository with a commit"):
        await graded((runtime, fresh), context)


async def test_graded_again_from_the_kept_patch(
    repositories: Places, context: ContextMaker, store: MemoryBlobStore
) -> None:
    """Without the agent's runtime, the patch of the earlier grading is what is graded."""
    agent, fresh = repositories
    await agent.upload("shapes.py", RIGHT.encode())
    around = context(agent, fresh)
    await around.artifacts.keep("patch.diff", b"")
    kept = references_in({"artifacts": around.artifacts.details})
    later = context(None, fresh, artifacts=Artifacts(store, "s1", earlier=kept))
    (grade,) = await evaluators.get("swebench", options()).evaluate(later)
    assert grade.details["empty_generation"] is True
    with pytest.raises(EvaluatorError, match="patch can't be had any more: the session has no artifact"):
        await evaluators.get("swebench", options()).evaluate(context(None, fresh))


def test_what_passes() -> None:
    """Passed and expectedly failed count; skipped and unheard of don't."""
    found = tally(["a", "b", "c", "d"], {"a": "PASSED", "b": "XFAIL", "c": "SKIPPED"})
    assert (found.success, found.failure) == (["a", "b"], ["c", "d"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instance": None}, r"evaluator\.options\.instance: must be a mapping"),
        ({"instance": {"repo": "a/b"}}, "name no test at all"),
        ({"instance": INSTANCE | {"FAIL_TO_PASS": "[oops"}}, r"instance\.FAIL_TO_PASS: is no JSON list"),
        ({"instance": INSTANCE | {"test_patch": 3}}, r"instance\.test_patch: must be a text"),
        ({"log_parser": "tea_leaves"}, r"options\.log_parser: must be one of pytest"),
        ({"test_timeout_s": -1}, r"options\.test_timeout_s: must be a number of seconds"),
        ({"drop": "*.pyc"}, r"options\.drop: must be a list of texts"),
        ({"patience": 1}, r"options\.patience: .* has no such option"),
    ],
)
def test_bad_options(change: dict[str, Any], message: str) -> None:
    """Each error begins with the field's path."""
    with pytest.raises(EvaluatorError, match=message):
        evaluators.validate("swebench", options(**change))


def test_the_buggy_repository_is_buggy() -> None:
    """The tests above would prove nothing with a repository that needs no mending."""
    scope: dict[str, Any] = {}
    exec(BUGGY, scope)
    assert scope["area"](3, 4) != 12
