"""A SWE-style task on a small real repository, solved by a scripted session through the real Pi, graded in a fresh runtime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.records import Boundary, ScoredTrajectory, SessionEvent, SessionEventType, Status
from tests.e2e.stack import Stack
from tests.e2e.swe import task

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(400)]

ALIEN = "diff --git a/shapes.py b/shapes.py\n--- a/shapes.py\n+++ b/shapes.py\n@@ -1,2 +1,2 @@\n-not there\n-nor this\n+a\n+b\n"
TASKS = {
    "right": task("right", "swe-right"),
    "wrong": task("wrong", "swe-wrong"),
    "empty": task("none", "swe-empty"),
    "alien": task("right", "swe-alien", patch_command=f"printf '%s' '{ALIEN}'"),
}


@dataclass(frozen=True, slots=True)
class Solved:
    """The stack, and of each task its result and the fact of its grading."""

    stack: Stack
    results: dict[str, ScoredTrajectory] = field(default_factory=dict)
    graded: dict[str, SessionEvent] = field(default_factory=dict)

    def details(self, kind: str) -> Any:
        """The report in the reward that the session was given."""
        return next(r for r in asyncio.run(self._rewards()) if r.session_id == self.results[kind].session_id).details

    async def _rewards(self) -> list[Any]:
        return await self.stack.read("reward.assigned")


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Solved]:
    """All four tasks, solved once on one stack."""
    with Stack(tmp_path_factory.mktemp("swe"), engine_url).running() as stack:
        stack.submit(*TASKS.values(), wait=True)
        found = Solved(stack)
        for kind, spec in TASKS.items():
            (found.results[kind],) = asyncio.run(stack.results(spec["task_id"]))
            facts = asyncio.run(stack.facts(spec["task_id"]))
            (found.graded[kind],) = [fact for fact in facts if fact.type is SessionEventType.GRADED]
        yield found


@pytest.mark.parametrize(
    ("kind", "reward", "flags"),
    [
        ("right", 1.0, {"patch_exists": True, "patch_successfully_applied": True, "resolved": True}),
        ("wrong", 0.0, {"patch_exists": True, "patch_successfully_applied": True, "resolved": False}),
        ("empty", 0.0, {"patch_exists": False, "empty_generation": True, "resolved": False}),
        ("alien", 0.0, {"patch_exists": True, "patch_successfully_applied": False, "failed_apply_patch": True}),
    ],
)
def test_what_a_patch_is_worth(solved: Solved, kind: str, reward: float, flags: dict[str, bool]) -> None:
    """The run is complete and trained whatever it is worth; the reward and each flag say what the patch did."""
    result = solved.results[kind]
    assert (result.status, result.boundary, result.reward) == (Status.COMPLETED, Boundary.NONE, reward), result.error
    assert result.trajectory is not None
    assert result.trajectory.counts.trained == result.trajectory.counts.calls == (2 if kind == "empty" else 3)
    details = solved.details(kind)
    assert {name: details[name] for name in flags} == flags
    failing = details["FAIL_TO_PASS"]["failures"]
    assert failing == ([] if kind == "right" else ["tests/test_shapes.py::test_area"])
    if kind in {"right", "wrong"}:
        assert details["PASS_TO_PASS"] == {"passed": 1, "failed": 0, "failures": []}


def test_artifacts_are_fetched(solved: Solved, tmp_path: Path) -> None:
    """Patch, log, report and the harness' output come out of the blob store by one command."""
    session = solved.results["right"].session_id
    solved.stack.cli("session", "artifacts", session[:12], "--out", str(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"patch.diff", "test_output.log", "report.json", "harness.stdout.log"} <= names
    assert "+    return width * height" in (tmp_path / "patch.diff").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["resolved"] is True


async def test_graded_again_from_its_patch(solved: Solved) -> None:
    """By a stricter test the right patch is worth nothing: revision 2; by the task's own evaluator again: revision 3."""
    right = solved.results["right"]
    strict = {"instance": TASKS["right"]["evaluator"]["options"]["instance"], "repo_dir": ".", "test_command": "true"}
    done = solved.stack.cli(
        "evaluate", "--task", "swe-right", "--evaluator", f"swebench:{json.dumps(strict)}", "--json"
    )
    (told,) = json.loads(done.stdout)
    assert (told["rewards"], told["before"], told["error"]) == ({"reward": 0.0}, {"reward": 1.0}, "")
    solved.stack.cli("evaluate", "--session", right.session_id, "--evaluator", "swebench")
    await _until(lambda: _revisions(solved.stack, "swe-right"), [(1, 1.0), (2, 0.0), (3, 1.0)])


async def test_graded_again_by_its_trajectory(solved: Solved) -> None:
    """A function gives one reward for each trace: they stand on the traces of the next revision."""
    function = "tests.stage_workers.evaluators.grading:each"
    solved.stack.cli("evaluate", "--task", "swe-wrong", "--evaluator", f"trajectory:function={function}")
    await _until(lambda: _revisions(solved.stack, "swe-wrong"), [(1, 0.0), (2, 0.0)])
    scored = (await solved.stack.results("swe-wrong"))[-1]
    assert scored.rewards[0].trace_rewards == [0.0]
    assert scored.rewards[0].provenance == "regrade"


async def test_graded_by_its_trajectory_at_once(solved: Solved) -> None:
    """An evaluator that needs the trajectory waits for it in POSTRUN; its rewards stand on the traces of revision 1."""
    evaluator = {"name": "trajectory", "options": {"function": "tests.stage_workers.evaluators.grading:named"}}
    solved.stack.submit(solved.stack.agent_task("turns=1", task_id="by-trajectory", evaluator=evaluator), wait=True)
    (scored,) = await solved.stack.results("by-trajectory")
    assert (scored.revision, scored.reward, scored.error) == (1, 1.0, "")
    by_name = {reward.name: reward.trace_rewards for reward in scored.rewards}
    assert by_name == {"reward": None, "per_trace": [0.5]}


def test_an_evaluation_of_the_two(solved: Solved, tmp_path: Path) -> None:
    """`polynya eval` runs right and wrong at the engine's one version: pass@1 is a half, in a report that `compare` reads."""
    tasks = json.dumps([TASKS["right"], TASKS["wrong"]])
    path = tmp_path / "report.json"
    told = json.loads(solved.stack.cli("eval", "-", "--strict", "--out", str(path), "--json", stdin=tasks).stdout)
    numbers = told["summary"]["pi"]
    assert (numbers["attempted"], numbers["accepted"], numbers["pass_at"]["1"]["value"]) == (2, 1, 0.5)
    assert numbers["repositories"]["tests/shapes"]["attempted"] == 2
    assert (told["strangers"], told["missing"], list(told["versions"])) == ([], 0, ["default"])
    said = solved.stack.cli("eval", "compare", str(path), str(path)).stdout
    assert "within noise" in said


def test_a_sweep_takes_nothing_that_is_referred_to(solved: Solved) -> None:
    """All blobs of a stack that runs are young or named by its log."""
    report = json.loads(solved.stack.cli("blobs", "prune", "--older-than", "1s", "--json").stdout)
    assert (report["removed"], report["blobs"]) == (0, report["kept"] + report["young"])


async def _revisions(stack: Stack, task_id: str) -> list[tuple[int, float | None]]:
    return sorted({(s.revision, s.reward) for s in await stack.results(task_id)})


async def _until(look: Any, expected: Any) -> None:
    async with asyncio.timeout(60):
        while await look() != expected:
            await asyncio.sleep(0.5)
