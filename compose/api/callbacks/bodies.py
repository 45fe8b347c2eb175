"""What a callback says: made anew for each try from the log, so that nothing but places is kept."""

from __future__ import annotations

import asyncio
from typing import Any

from compose.api.polar.results import task_result
from compose.api.reading import LogReading, result_json
from compose.api.rows import GroupRow, SessionRow, TaskRow
from compose.api.views import Views
from schemas import json_text
from schemas.records import Callback


class OversizedError(Exception):
    """A body would be larger than one may be."""


class Bodies:
    """Renders callbacks."""

    def __init__(self, views: Views, reading: LogReading, *, inline_bytes: int) -> None:
        self._views = views
        self._reading = reading
        self._inline_bytes = inline_bytes

    async def of(self, callback: Callback) -> bytes | None:
        """The body; None when the log no longer has what it would say. OversizedError when it can't be sent whole."""
        task = self._views.rows.tasks.get(callback.task_id)
        group = task.groups.get(callback.group_id) if task is not None else None
        if task is None or group is None:
            return None
        if callback.session_id:
            session = group.sessions.get(callback.session_id)
            return None if session is None else await self._session(callback, session)
        if task.callback_body == "polar":
            return await self._polar(task, group)
        return json_text.dump(_task_json(callback, task, group)).encode()

    async def _session(self, callback: Callback, session: SessionRow) -> bytes | None:
        scored = await self._reading.scored([session])
        if not scored:
            return None
        body = {"event": callback.kind, "delivery_id": callback.delivery_id, **result_json(scored[0])}
        return json_text.dump(body).encode()

    async def _polar(self, task: TaskRow, group: GroupRow) -> bytes | None:
        rows = sorted(group.sessions.values(), key=lambda s: s.index)
        scored = await self._reading.scored(rows, up_to_bytes=self._inline_bytes)
        if len(scored) < len(rows):
            raise OversizedError(
                f"the results of all {len(rows)} sessions are more than {self._inline_bytes} bytes: page through "
                f"GET /api/tasks/{task.task_id}/trajectories"
            )
        return await asyncio.to_thread(lambda: json_text.dump(task_result(task, scored)).encode())


def _task_json(callback: Callback, task: TaskRow, group: GroupRow) -> dict[str, Any]:
    rows = sorted(group.sessions.values(), key=lambda s: s.index)
    results = [(row, row.result) for row in rows if row.result is not None]
    rewards = [result.reward for _, result in results if result.reward is not None]
    return {
        "event": callback.kind,
        "delivery_id": callback.delivery_id,
        "task_id": task.task_id,
        "group_id": group.group_id,
        "generation": group.generation,
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "sessions": [
            {"session_id": row.session_id, "index": row.index, "status": result.status, "reward": result.reward}
            for row, result in results
        ],
    }
