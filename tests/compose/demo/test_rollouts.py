"""Tasks out and results in, over a log in memory."""

from __future__ import annotations

import asyncio

import pytest

from bus.memory import MemoryBus
from compose.demo.family import Combination, task_of
from compose.demo.rollouts import rollouts
from schemas.records import ScoredTrajectory, Status, TaskRequest

COMBINATION = Combination("delta", "notes.txt")


async def test_results_come_once_all_sessions_of_the_tasks_have_one(memory_bus: MemoryBus) -> None:
    """The requests are on the log; a session's later revision and another task's sessions change nothing."""
    tasks = [task_of(COMBINATION, task_id=name, samples=2, seed=1, policy_id="p") for name in ("a", "b")]
    async with rollouts(memory_bus) as rolled:
        await rolled.submit(tasks)
        assert rolled.submitted == 4
        requests = [d.decode() async for d in memory_bus.tail(["rollout.tasks"], start="earliest", until_end=True)]
        assert [r.task_id for r in requests if isinstance(r, TaskRequest)] == ["a", "b"]
        waiting = asyncio.create_task(rolled.results(tasks, 5.0))
        for session, task, reward in (
            ("1", "a", 1.0),
            ("2", "a", 0.2),
            ("2", "a", 0.9),
            ("9", "z", 1.0),
            ("3", "b", 0.0),
        ):
            await memory_bus.publish(
                ScoredTrajectory(session_id=session, task_id=task, status=Status.COMPLETED, reward=reward)
            )
        await asyncio.sleep(0)
        assert not waiting.done()
        await memory_bus.publish(ScoredTrajectory(session_id="4", task_id="b", status=Status.COMPLETED, reward=1.0))
        assert sorted((r.session_id, r.reward) for r in await waiting) == [
            ("1", 1.0),
            ("2", 0.2),
            ("3", 0.0),
            ("4", 1.0),
        ]


async def test_results_that_dont_come_in_time_are_said(memory_bus: MemoryBus) -> None:
    """Waiting has an end."""
    (task,) = [task_of(COMBINATION, task_id="a", samples=1, seed=1, policy_id="p")]
    async with rollouts(memory_bus) as rolled:
        await rolled.submit([task])
        with pytest.raises(TimeoutError):
            await rolled.results([task], 0.05)
