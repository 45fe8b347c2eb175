"""An evaluation's plan, and its run on a log in memory where the test plays the fleet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.memory import MemoryBus
from compose.cli.main import app
from compose.errors import CommandError
from compose.evaluation.run import NOBODY, Plan, plan, published_version, run
from schemas.records import (
    PolicyEvent,
    PolicyEventType,
    ScoredTrajectory,
    SessionSpec,
    Status,
    TaskRequest,
    Trace,
    Trajectory,
    TurnSpan,
    VersionSpan,
)
from schemas.task import TaskSpec
from tests.compose.evaluation.test_report import attempt, report

TASKS = [
    TaskSpec.model_validate(
        {
            "task_id": name,
            "instruction": "Do it",
            "harness": {"name": "shell", "options": {"command": "true"}},
            "metadata": {"repo": "a/b"},
            "num_samples": 2,
            "min_usable": 2,
        }
    )
    for name in ("one", "two")
]


def made(**more: Any) -> Plan:
    return plan(TASKS, eval_id="eval-1", policy_id="p", **more)


def test_a_name_that_stands_twice() -> None:
    """Two tasks of one name, or a harness that is asked for twice, would count each session twice: refused."""
    with pytest.raises(CommandError, match="'one' stands there twice for the harness shell"):
        plan([TASKS[0], TASKS[0]], eval_id="eval-1", policy_id="p")
    with pytest.raises(CommandError, match="twice for the harness pi"):
        made(harnesses=["pi", "pi"])


def test_tasks_get_names_of_their_own() -> None:
    """Each task for each harness, for nobody's training, with the set's own metadata kept."""
    found = made(harnesses=["shell", "pi"], samples=3)
    assert list(found.names) == ["eval-1/one/shell", "eval-1/one/pi", "eval-1/two/shell", "eval-1/two/pi"]
    assert set(found.names.values()) == {"one", "two"}
    assert found.sessions == 12
    first, second, *_ = found.tasks
    assert first.harness == TASKS[0].harness
    assert (second.harness.name, second.harness.options) == ("pi", {})
    assert (first.policy_id, first.for_trainer, first.min_usable) == ("p", NOBODY, None)
    assert first.metadata == {"repo": "a/b", "eval_id": "eval-1", "eval_task": "one"}
    with pytest.raises(CommandError, match="one, harness nobody"):
        made(harnesses=["nobody"])


async def answer(bus: MemoryBus, how_many: int, version: str = "7") -> None:
    """Plays the fleet: a result for each session of each task that is submitted; rewards 1 and 0 in turn."""
    done = 0
    async for delivery in bus.tail(["rollout.tasks"]):
        request = delivery.decode()
        assert isinstance(request, TaskRequest)
        for index in range(request.num_samples):
            span = VersionSpan(version=version, start=0, end=10)
            turn = TurnSpan(start=0, end=10, is_trained=True, version_spans=[span])
            await bus.publish(
                ScoredTrajectory(
                    session_id=f"{request.task_id}-{index}",
                    group_id="g",
                    task_id=request.task_id,
                    status=Status.COMPLETED,
                    reward=float(index % 2),
                    trajectory=Trajectory(traces=[Trace(turns=[turn])]),
                    spec=SessionSpec(harness=request.harness, index=index, metadata=request.spec["metadata"]),
                )
            )
            done += 1
            if done == how_many:
                return


async def test_run(memory_bus: MemoryBus) -> None:
    """Submitted, followed to the end, reported under the tasks' own names, against the newest published version."""
    for version in ("6", "7"):
        await memory_bus.publish(PolicyEvent(policy_id="p", type=PolicyEventType.PUBLISHED, version=version))
    await memory_bus.publish(PolicyEvent(policy_id="other", type=PolicyEventType.PUBLISHED, version="99"))
    assert await published_version(memory_bus, "p") == "7"
    assert await published_version(memory_bus, "nobody") == ""
    fleet = asyncio.create_task(answer(memory_bus, 4))
    found = await run(memory_bus, made(), task_file="t", version=None, accept=1.0, timeout_s=20)
    await fleet
    assert (found.version, found.strangers, found.missing) == ("7", [], 0)
    assert found.tasks(found.attempts) == {"one": (1, 2), "two": (1, 2)}
    assert {one.repository for one in found.attempts} == {"a/b"}


async def test_what_does_not_end_is_missing(memory_bus: MemoryBus) -> None:
    """When the wait is over, the report says how much isn't there."""
    fleet = asyncio.create_task(answer(memory_bus, 3, version="8"))
    found = await run(memory_bus, made(), task_file="t", version="7", accept=1.0, timeout_s=0.5)
    await fleet
    assert (len(found.attempts), found.missing, found.strangers) == (3, 1, ["8"])


def test_the_command_compares_two_files(tmp_path: Path) -> None:
    """`eval compare A B` beside `eval TASKS`: one name, two things."""
    paths = []
    for name, reward in (("a", 0.0), ("b", 1.0)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(report(*(attempt(f"t{n}", reward) for n in range(9))).to_json()))
        paths.append(str(path))
    done = CliRunner().invoke(app, ["eval", "compare", *paths, "--json"])
    assert done.exit_code == 0, done.output
    (line,) = json.loads(done.stdout)
    assert (line["first"]["value"], line["second"]["value"], line["is_clear"]) == (0.0, 1.0, True)
    table = CliRunner().invoke(app, ["eval", "compare", *paths])
    assert "+100.0 %" in table.stdout
    assert "paired bootstrap" in table.stdout
    missing = CliRunner().invoke(app, ["eval", str(tmp_path / "none.yaml")])
    assert isinstance(missing.exception, CommandError)
    assert "can't read the task file" in str(missing.exception)
