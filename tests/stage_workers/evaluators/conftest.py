"""What the evaluators' tests share: runtimes on this machine, and contexts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBlobStore
from schemas.records import Boundary, Status
from schemas.task import Step, TaskSpec
from stage_workers.evaluators import Artifacts, EvaluationContext
from stage_workers.runtimes import LocalRuntime
from stage_workers.steps import run_steps
from tests.stage_workers.evaluators.repository import setup_step

TASK = {"instruction": "Do it", "harness": {"name": "shell", "options": {"command": "true"}}}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[LocalRuntime]:
    """The session's runtime."""
    place = LocalRuntime(tmp_path, "session", owner="tests", grace_s=0.1)
    await place.start()
    yield place
    await place.stop()


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[LocalRuntime]:
    """The evaluator's own."""
    place = LocalRuntime(tmp_path, "fresh", owner="tests", grace_s=0.1)
    await place.start()
    yield place
    await place.stop()


@pytest.fixture
async def repositories(runtime: LocalRuntime, fresh: LocalRuntime) -> tuple[LocalRuntime, LocalRuntime]:
    """Both of them with the repository in the working directory."""
    for place in (runtime, fresh):
        await run_steps(place, [Step.model_validate(setup_step())], "prepare", Boundary.SANDBOX)
    return runtime, fresh


@pytest.fixture
def store() -> MemoryBlobStore:
    """Where artifacts go."""
    return MemoryBlobStore()


ContextMaker = Callable[..., EvaluationContext]


@pytest.fixture
def context(store: MemoryBlobStore) -> ContextMaker:
    """Makes contexts; artifacts of `s1` go to the store."""

    def make(runtime: LocalRuntime | None, fresh: LocalRuntime | None = None, **fields: Any) -> EvaluationContext:
        given: dict[str, Any] = {
            "session_id": "s1",
            "task": TaskSpec.model_validate(TASK),
            "status": Status.COMPLETED,
            "exit_code": 0,
            "evaluate_s": 60.0,
            "artifacts": Artifacts(store, "s1"),
        }
        return EvaluationContext(runtime=runtime, fresh=fresh, **(given | fields))

    return make
