"""Tasks out, results in: what the demo knows of its sessions, it reads from the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from bus import Bus
from compose.cli.task_file import request_of
from schemas.records import ScoredTrajectory
from schemas.task import TaskSpec


class Rollouts:
    """Submits tasks and collects their sessions' results. Made by `rollouts`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._changed = asyncio.Condition()
        self._expected: dict[str, int] = {}
        self.scored: dict[str, ScoredTrajectory] = {}
        """First results by session, in the order of their arrival."""

    @property
    def submitted(self) -> int:
        """Sessions that were asked for."""
        return sum(self._expected.values())

    async def submit(self, tasks: Iterable[TaskSpec]) -> None:
        """Ask for these tasks' sessions."""
        for task in tasks:
            request = request_of(task)
            self._expected[request.task_id] = task.num_samples
            await self._bus.publish(request)

    async def results(self, tasks: Sequence[TaskSpec], within_s: float) -> list[ScoredTrajectory]:
        """The results of submitted tasks, once all are there; TimeoutError when they aren't within the time."""
        wanted = {task.task_id or "" for task in tasks}
        count = sum(self._expected[name] for name in wanted)

        def found() -> list[ScoredTrajectory]:
            return [result for result in self.scored.values() if result.task_id in wanted]

        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(found()) >= count)
        return found()

    async def read(self) -> None:
        """Collect results until cancelled."""
        async for delivery in self._bus.tail(["trajectory.scored"], start="earliest"):
            result = delivery.decode()
            if isinstance(result, ScoredTrajectory) and result.task_id in self._expected:
                async with self._changed:
                    self.scored.setdefault(result.session_id, result)
                    self._changed.notify_all()


@asynccontextmanager
async def rollouts(bus: Bus) -> AsyncIterator[Rollouts]:
    """Rollouts whose results are read for the block's time. What ends the reading ends the block."""
    made = Rollouts(bus)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(made.read(), name="demo-results")
        yield made
        reading.cancel()
