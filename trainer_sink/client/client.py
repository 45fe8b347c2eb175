"""`PolynyaClient` and its asynchronous twin: the API's calls with a key, retries and deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import httpx

from trainer_sink.client import calls
from trainer_sink.client.calls import RETRIES, Call
from trainer_sink.client.errors import ApiUnavailableError, PolynyaApiError, TaskTimeoutError
from trainer_sink.client.values import ApiTrajectory, TaskState

Task = Mapping[str, Any]
OnProgress = Callable[[TaskState], None]

LONG_POLL_S: Final = 20.0
"""How long the API is asked to hold a question for a task's end."""

PROGRESS_EVERY_S: Final = 1.0
"""With a progress function it is asked more often."""

PAGE: Final = 16


def _options(base_url: str, key: str, timeout_s: float) -> dict[str, Any]:
    return {
        "base_url": base_url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {key}", "User-Agent": "polynya-client"},
        "timeout": timeout_s,
    }


def _unreachable(base_url: httpx.URL, error: Exception) -> ApiUnavailableError:
    return ApiUnavailableError(
        f"the API at {base_url} doesn't answer: {type(error).__name__} {error}",
        hint="see whether it runs: polynya api url",
    )


def _late(state: TaskState, timeout_s: float) -> TaskTimeoutError:
    return TaskTimeoutError(
        f"task {state.task_id} hadn't ended after {timeout_s:g} s: {state.scored} of {state.num_samples} sessions scored",
        hint="it goes on: wait again, or cancel it",
    )


class PolynyaClient:
    """Talks to the HTTP API. Close it, or use it with `with`.

    Calls that the API can't answer now are repeated; every call of this client may be repeated safely. Raises
    `PolynyaApiError` and its subclasses.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = 60.0,
        retries: int = RETRIES,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`key` is what `polynya api key` prints; `transport` is for tests."""
        self._http = httpx.Client(**_options(base_url, key, timeout_s), transport=transport)
        self._timeout_s = timeout_s
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def submit(self, task: Task) -> str:
        """Submit a task (as in a task file); its id. Durable when this returns."""
        return str(self._ask(calls.submit(task))["task_id"])

    def submit_many(self, tasks: Sequence[Task]) -> list[str]:
        """Submit tasks, all or none; their ids in order."""
        return [str(t["task_id"]) for t in self._ask(calls.submit_many(list(tasks)))["tasks"]]

    def status(self, task_id: str) -> TaskState:
        """Where a task stands."""
        return TaskState.of(self._ask(calls.status(task_id)))

    def wait(self, task_id: str, timeout_s: float = 3600.0, on_progress: OnProgress | None = None) -> TaskState:
        """Wait until each session of a task has its result; TaskTimeoutError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            wait_s = min(left_s, PROGRESS_EVERY_S if on_progress else LONG_POLL_S)
            state = TaskState.of(self._ask(calls.status(task_id, wait_s=wait_s, sessions=False)))
            if on_progress is not None:
                on_progress(state)
            if state.is_ended:
                return state
            if left_s <= 0:
                raise _late(state, timeout_s)

    def cancel(self, task_id: str, reason: str | None = None) -> int:
        """Cancel what still runs of a task; how many sessions hadn't ended."""
        return int(self._ask(calls.cancel("tasks", task_id, reason))["sessions"])

    def cancel_session(self, session_id: str, reason: str | None = None) -> int:
        """Cancel one session; 0 when it had ended already."""
        return int(self._ask(calls.cancel("sessions", session_id, reason))["sessions"])

    def get_trajectories(self, task_id: str) -> list[ApiTrajectory]:
        """The results of a task's sessions that are scored, with their traces."""
        return list(self.iter_trajectories(task_id))

    def iter_trajectories(self, task_id: str, *, page: int = PAGE) -> Iterator[ApiTrajectory]:
        """The same one by one: a page of them in memory."""
        after: int | None = -1
        while after is not None:
            answer = self._ask(calls.trajectories(task_id, after, page))
            yield from map(ApiTrajectory.of, answer["trajectories"])
            after = answer["next"]

    def get_trajectory(self, session_id: str) -> ApiTrajectory:
        """A session's result; NotFoundError while it isn't scored."""
        return ApiTrajectory.of(self._ask(calls.trajectory(session_id)))

    def session(self, session_id: str) -> dict[str, Any]:
        """A session with its facts and its result without tokens."""
        return dict(self._ask(calls.session(session_id)))

    def nodes(self) -> list[dict[str, Any]]:
        """Workers and proxies."""
        return list(self._ask(calls.nodes())["nodes"])

    def health(self) -> dict[str, Any]:
        """Whether the API can answer: its `status` is ok, starting or degraded."""
        return dict(self._ask(calls.health()))

    def _ask(self, call: Call) -> Any:
        for tries in range(self._retries + 1):
            try:
                return self._once(call)
            except PolynyaApiError as error:
                if not error.is_retriable or tries == self._retries:
                    raise
                time.sleep(calls.pause_s(error, tries))
        raise AssertionError("unreachable")

    def _once(self, call: Call) -> Any:
        try:
            response = self._http.request(
                call.method,
                call.path,
                params=call.params,
                content=call.body,
                headers=call.headers,
                timeout=self._timeout_s + call.wait_s,
            )
        except httpx.TransportError as error:
            raise _unreachable(self._http.base_url, error) from error
        return calls.read(call, response.status_code, response.content, response.headers.get("retry-after"))


class AsyncPolynyaClient:
    """`PolynyaClient` for asyncio: the same methods, awaited. Close it, or use it with `async with`."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = 60.0,
        retries: int = RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """See `PolynyaClient`."""
        self._http = httpx.AsyncClient(**_options(base_url, key, timeout_s), transport=transport)
        self._timeout_s = timeout_s
        self._retries = retries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the connections go."""
        await self._http.aclose()

    async def submit(self, task: Task) -> str:
        """See `PolynyaClient.submit`."""
        return str((await self._ask(calls.submit(task)))["task_id"])

    async def submit_many(self, tasks: Sequence[Task]) -> list[str]:
        """See `PolynyaClient.submit_many`."""
        return [str(t["task_id"]) for t in (await self._ask(calls.submit_many(list(tasks))))["tasks"]]

    async def status(self, task_id: str) -> TaskState:
        """See `PolynyaClient.status`."""
        return TaskState.of(await self._ask(calls.status(task_id)))

    async def wait(self, task_id: str, timeout_s: float = 3600.0, on_progress: OnProgress | None = None) -> TaskState:
        """See `PolynyaClient.wait`."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            wait_s = min(left_s, PROGRESS_EVERY_S if on_progress else LONG_POLL_S)
            state = TaskState.of(await self._ask(calls.status(task_id, wait_s=wait_s, sessions=False)))
            if on_progress is not None:
                on_progress(state)
            if state.is_ended:
                return state
            if left_s <= 0:
                raise _late(state, timeout_s)

    async def cancel(self, task_id: str, reason: str | None = None) -> int:
        """See `PolynyaClient.cancel`."""
        return int((await self._ask(calls.cancel("tasks", task_id, reason)))["sessions"])

    async def cancel_session(self, session_id: str, reason: str | None = None) -> int:
        """See `PolynyaClient.cancel_session`."""
        return int((await self._ask(calls.cancel("sessions", session_id, reason)))["sessions"])

    async def get_trajectories(self, task_id: str) -> list[ApiTrajectory]:
        """See `PolynyaClient.get_trajectories`."""
        return [trajectory async for trajectory in self.iter_trajectories(task_id)]

    async def iter_trajectories(self, task_id: str, *, page: int = PAGE) -> AsyncIterator[ApiTrajectory]:
        """See `PolynyaClient.iter_trajectories`."""
        after: int | None = -1
        while after is not None:
            answer = await self._ask(calls.trajectories(task_id, after, page))
            for body in answer["trajectories"]:
                yield ApiTrajectory.of(body)
            after = answer["next"]

    async def get_trajectory(self, session_id: str) -> ApiTrajectory:
        """See `PolynyaClient.get_trajectory`."""
        return ApiTrajectory.of(await self._ask(calls.trajectory(session_id)))

    async def session(self, session_id: str) -> dict[str, Any]:
        """See `PolynyaClient.session`."""
        return dict(await self._ask(calls.session(session_id)))

    async def nodes(self) -> list[dict[str, Any]]:
        """See `PolynyaClient.nodes`."""
        return list((await self._ask(calls.nodes()))["nodes"])

    async def health(self) -> dict[str, Any]:
        """See `PolynyaClient.health`."""
        return dict(await self._ask(calls.health()))

    async def _ask(self, call: Call) -> Any:
        for tries in range(self._retries + 1):
            try:
                return await self._once(call)
            except PolynyaApiError as error:
                if not error.is_retriable or tries == self._retries:
                    raise
                await asyncio.sleep(calls.pause_s(error, tries))
        raise AssertionError("unreachable")

    async def _once(self, call: Call) -> Any:
        try:
            response = await self._http.request(
                call.method,
                call.path,
                params=call.params,
                content=call.body,
                headers=call.headers,
                timeout=self._timeout_s + call.wait_s,
            )
        except httpx.TransportError as error:
            raise _unreachable(self._http.base_url, error) from error
        return calls.read(call, response.status_code, response.content, response.headers.get("retry-after"))
