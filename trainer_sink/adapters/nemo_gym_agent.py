"""NeMo Gym's agent server with a fleet behind it: each `/run` is a session of one task, submitted through the HTTP API.

Needs the extras `client` and, for the server, `api`. The model server that Gym would give an agent isn't used: the fleet's own
engines answer, token by token, and the tokens come back with the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from trainer_sink.adapters.nemo_gym import FAILURE_CLASS_KEY, failure, task_of, verify_response

if TYPE_CHECKING:
    from fastapi import FastAPI

    from trainer_sink.client.values import ApiTrajectory, TaskState

_log = structlog.get_logger(__name__)

TASK_INDEX_KEY = "_ng_task_index"


class Rollouts(Protocol):
    """The part of `AsyncPolynyaClient` that is needed."""

    async def submit(self, task: Mapping[str, Any]) -> str:
        """Submit a task; its id."""

    async def wait(self, task_id: str, timeout_s: float = ...) -> TaskState:
        """Wait for its end."""

    async def get_trajectories(self, task_id: str) -> list[ApiTrajectory]:
        """Its results."""

    async def cancel(self, task_id: str, reason: str | None = None) -> int:
        """Stop what still runs."""


class PolynyaAgent:
    """Runs rows of a data set on a fleet. `template` is a task (harness, runtime, evaluator …) without its instruction.

    At most `concurrency` rows are on their way at once; one that takes longer than `timeout_s` is cancelled and fails.
    """

    def __init__(
        self, rollouts: Rollouts, template: Mapping[str, Any], *, concurrency: int = 64, timeout_s: float = 3600.0
    ) -> None:
        self._rollouts = rollouts
        self._template = dict(template)
        self._places = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s

    async def run(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The verify response of one row. It never raises for a row: what goes wrong is a failure that Gym tries again."""
        async with self._places:
            task_id = ""
            try:
                task_id = await self._rollouts.submit(task_of(row, self._template))
                await self._rollouts.wait(task_id, timeout_s=self._timeout_s)
                results = await self._rollouts.get_trajectories(task_id)
                if len(results) != 1:
                    return failure(row, f"task {task_id} has {len(results)} results instead of one")
                return verify_response(row, results[0])
            except asyncio.CancelledError:
                await self._give_up(task_id, "the run was cancelled")
                raise
            except Exception as error:  # noqa: BLE001 - the row's boundary: Gym counts a failed row, a 500 would end its collection
                _log.warning("run.failed", task=task_id, error=repr(error))
                await self._give_up(task_id, "the run failed")
                return failure(row, f"{type(error).__name__}: {error}")

    async def _give_up(self, task_id: str, reason: str) -> None:
        if not task_id:
            return
        try:
            async with asyncio.timeout(10):
                await self._rollouts.cancel(task_id, reason)
        except Exception as error:  # noqa: BLE001 - the run has failed already; the task's own budgets end it in any case
            _log.warning("task.not_cancelled", task=task_id, error=repr(error))


def aggregate(responses: list[Mapping[str, Any]]) -> dict[str, Any]:
    """`AggregateMetrics` of verify responses: mean reward, how many failed, and the mean by task where rows say their index."""
    rewards = [float(r["reward"]) for r in responses]
    by_task: dict[Any, list[float]] = {}
    for response in responses:
        by_task.setdefault(response.get(TASK_INDEX_KEY), []).append(float(response["reward"]))
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    groups = [{TASK_INDEX_KEY: i, "mean/reward": sum(v) / len(v)} for i, v in by_task.items() if i is not None]
    failed = sum(FAILURE_CLASS_KEY in r for r in responses)
    overall = {"mean/reward": mean, "rollouts": len(rewards), "failed": failed}
    return {"group_level_metrics": groups, "agent_metrics": overall, "key_metrics": {"mean/reward": mean}}


def server(agent: PolynyaAgent) -> FastAPI:
    """The agent server's routes: `/run` and `/aggregate_metrics`; `/v1/responses` is refused, since a harness runs whole sessions."""
    try:
        from fastapi import FastAPI, HTTPException
    except ModuleNotFoundError as missing:
        raise ImportError(f"the server needs {missing.name}: pip install 'polynya[api,client]'") from missing
    app = FastAPI(title="Polynya for NeMo Gym")

    @app.post("/run")
    async def run(row: dict[str, Any]) -> dict[str, Any]:
        if "responses_create_params" not in row:
            raise HTTPException(422, "the row has no responses_create_params")
        return await agent.run(row)

    @app.post("/aggregate_metrics")
    async def aggregate_metrics(body: dict[str, Any]) -> dict[str, Any]:
        return aggregate(body["verify_responses"])

    @app.post("/v1/responses")
    async def responses() -> dict[str, Any]:
        raise HTTPException(501, "a harness runs the whole session: post the row to /run")

    return app
