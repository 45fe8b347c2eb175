"""Task files: whatever is wrong is refused with the path of the field."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.task import TaskSpec

MINIMAL: dict[str, Any] = {"instruction": "Say hello.", "harness": {"name": "shell", "options": {"command": "echo"}}}


def _paths(task: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        TaskSpec.model_validate(task)
    return [".".join(map(str, e["loc"])) for e in caught.value.errors()]


def test_a_minimal_task_gets_defaults() -> None:
    """An instruction and a harness are enough."""
    task = TaskSpec.model_validate(MINIMAL)
    assert (task.num_samples, task.policy_id, task.builder.name) == (1, "default", "prefix_merging")
    assert task.evaluator.name == "session_completed"
    assert task.budgets.run_s > 0


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"instructions": "x"}, "instructions"),
        ({"harness": {"name": "pi", "flavour": 1}}, "harness.flavour"),
        ({"budgets": {"run_s": -5}}, "budgets.run_s"),
        ({"budgets": {"init_s": 0}}, "budgets.init_s"),
        ({"budgets": {"run_s": float("inf")}}, "budgets.run_s"),
        ({"runtime": {"cpus": float("inf")}}, "runtime.cpus"),
        ({"budgets": {"run_s": "soon"}}, "budgets.run_s"),
        ({"num_samples": "many"}, "num_samples"),
        ({"num_samples": 0}, "num_samples"),
        ({"runtime": {"kind": "vm"}}, "runtime.kind"),
        ({"runtime": {"memory_mb": -1}}, "runtime.memory_mb"),
        ({"prepare": [{"exec": "true"}, {"exec": "true", "budget_s": -1}]}, "prepare.1.budget_s"),
        ({"prepare": [{}]}, "prepare.0"),
        ({"prepare": [{"exec": "a", "upload": {"path": "b"}}]}, "prepare.0"),
        ({"post_run": [{"upload": {"content": "x"}}]}, "post_run.0.upload.path"),
        ({"post_run": [{"upload": {"path": "../escape"}}]}, "post_run.0.upload"),
        ({"post_run": [{"upload": {"path": "/etc/passwd"}}]}, "post_run.0.upload"),
        ({"builder": {"name": "magic"}}, "builder.name"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature"),
        ({"instruction": ""}, "instruction"),
        ({"harness": "pi"}, "harness"),
        ({"task_id": ""}, "task_id"),
        ({"max_attempts": 0}, "max_attempts"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(change: dict[str, Any], path: str) -> None:
    """Unknown fields, wrong types, empty and negative values: the error's location is the field's path."""
    assert _paths(MINIMAL | change) == [path]


@pytest.mark.parametrize("missing", ["instruction", "harness"])
def test_a_missing_field_is_named(missing: str) -> None:
    """What a task can't do without is asked for by name."""
    assert _paths({k: v for k, v in MINIMAL.items() if k != missing}) == [missing]


def test_every_mistake_is_reported_at_once() -> None:
    """One round of fixing, not one per mistake."""
    assert _paths({"harness": {}, "budgets": {"run_s": -1}, "oops": 1}) == [
        "instruction",
        "harness.name",
        "budgets.run_s",
        "oops",
    ]


def test_usable_samples_cannot_exceed_samples() -> None:
    """A group can't need more usable sessions than it has."""
    with pytest.raises(ValidationError, match="min_usable 3 is more than num_samples 2"):
        TaskSpec.model_validate(MINIMAL | {"num_samples": 2, "min_usable": 3})


def test_a_task_survives_its_own_json() -> None:
    """What is submitted is what the worker reads."""
    task = TaskSpec.model_validate(MINIMAL | {"prepare": [{"upload": {"path": "a/b.txt", "content": "é\x00"}}]})
    assert TaskSpec.model_validate(task.model_dump(mode="json")) == task


def test_a_task_is_frozen() -> None:
    """Nobody changes a task after it was validated."""
    task = TaskSpec.model_validate(MINIMAL)
    with pytest.raises(ValidationError):
        task.num_samples = 3  # type: ignore[misc]
