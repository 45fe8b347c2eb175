"""What a step trains on: its groups, as they come from the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Literal, TypeVar

from trainer_sink.consumer import GroupConsumer
from trainer_sink.groups import Group

T = TypeVar("T")


class StepGroups:
    """Collects whole steps from a consumer, until no more groups come or the run is to stop."""

    def __init__(
        self, consumer: GroupConsumer, *, per_step: int, until_idle_s: float | None, stop: asyncio.Event
    ) -> None:
        self._consumer = consumer
        self._per_step = per_step
        self._until_idle_s = until_idle_s
        self._stop = stop
        self.ended: Literal["end_of_log", "idle"] | None = None
        """Why no more groups come; None while they do."""

    async def collect(self) -> list[Group]:
        """The next step's groups; fewer at the end of the log or when no more come, none when the run is to stop.

        Raises what the consumer raises.
        """
        groups: list[Group] = []
        while len(groups) < self._per_step:
            try:
                group = await self._unless_stopped(anext(self._consumer))
            except StopAsyncIteration:
                self.ended = "end_of_log"
                return groups
            except TimeoutError:
                self.ended = "idle"
                return groups
            if group is None:
                return []  # not committed, so they come again
            groups.append(group)
        return groups

    async def _unless_stopped(self, work: Awaitable[T]) -> T | None:
        """What `work` gives; None when the run is stopped before; TimeoutError when it takes too long."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopping}, timeout=self._until_idle_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if stopping.done():
                return None
            raise TimeoutError
        finally:
            for one in (task, stopping):
                one.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)
