"""Submitting tasks: checked whole, durable before they are accepted, and one specification for each task id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from bus import Bus, BusUnavailableError
from compose import submissions
from compose.api.callbacks.allowed import refusal
from compose.api.problems import ApiError, FieldProblem, not_now
from compose.api.settings import ApiSettings
from compose.api.views import Views
from compose.cli.task_file import check_spec, request_of
from compose.errors import CommandError
from schemas import MalformedRecordError, ids
from schemas.records import TaskRequest
from schemas.task import TaskSpec

TaskId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,199}$")]
"""A task id stands in URLs, so it may hold less than a task file's."""

EXAMPLE: Final[dict[str, Any]] = {
    "task_id": "example-1",
    "instruction": "Say hello.",
    "harness": {"name": "shell", "options": {"command": "echo {instruction}"}},
    "num_samples": 2,
    "budgets": {"run_s": 60},
}


class SubmittedTask(TaskSpec):
    """A task as in a task file. The id may hold letters, digits and `_.:@-`, since it stands in URLs."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    task_id: TaskId | None = None


class Submissions:
    """Takes tasks for the log."""

    def __init__(self, bus: Bus, views: Views, settings: ApiSettings) -> None:
        self._bus = bus
        self._views = views
        self._settings = settings

    async def submit(self, specs: Sequence[TaskSpec], where: Sequence[str] = ()) -> list[TaskRequest]:
        """The commands under which these tasks stand on the log; `where` names each one in errors.

        All are checked before the first is published. A task whose id is taken by the same specification is the same task.
        Raises ApiError: 422 for what no worker could run, 409 for an id that means something else, 503 when Kafka doesn't
        answer (the same submission may then be sent again).
        """
        # In a thread: thousands of tasks take a while to check.
        requests, digests = await asyncio.to_thread(self._checked, specs, where or [""] * len(specs))
        deadline_s = self._settings.publish_within_s
        try:
            async with asyncio.timeout(deadline_s + 1):
                taken = await submissions.take(self._bus, self._views, requests, digests, deadline_s=deadline_s)
        except submissions.TaskIdTakenError as error:
            raise ApiError(409, str(error), hint=error.hint) from error
        except MalformedRecordError as error:
            raise ApiError(422, f"the task doesn't fit a record: {error}") from error
        except (BusUnavailableError, TimeoutError) as late:
            raise not_now(
                "Kafka didn't acknowledge the task in time; it may still be taken",
                hint="send the same submission again: under the same task_id it is the same task",
            ) from late
        return [one.request for one in taken]

    def _checked(self, specs: Sequence[TaskSpec], places: Sequence[str]) -> tuple[list[TaskRequest], dict[str, str]]:
        """The commands, and the digest of each task id's specification."""
        for spec, place in zip(specs, places, strict=True):
            self._check(spec, place)
        requests = [request_of(spec) for spec in specs]
        try:
            return requests, submissions.digests_of(requests, places)
        except CommandError as error:
            raise ApiError(422, str(error)) from error

    def _check(self, spec: TaskSpec, place: str) -> None:
        try:
            check_spec(spec)
        except CommandError as error:
            path, _, problem = str(error).partition(": ")
            errors = [FieldProblem(path=f"{place}{path}", problem=problem)]
            raise ApiError(422, f"{place}{error}", hint=error.hint, errors=errors) from error
        if spec.callback_url is not None and (why := refusal(spec.callback_url, self._settings)):
            errors = [FieldProblem(path=f"{place}callback_url", problem=why)]
            raise ApiError(
                422,
                f"{place}callback_url: {why}",
                hint="its operator lists hosts in POLYNYA_API_CALLBACK_HOSTS",
                errors=errors,
            )


def accepted(request: TaskRequest) -> dict[str, object]:
    """The answer for a task that stands on the log, as `models.Accepted`."""
    return {
        "task_id": request.task_id,
        "group_id": ids.group_id(request.task_id),
        "policy_id": request.policy_id,
        "num_samples": request.num_samples,
        "submitted_at": request.submitted_at,
    }
