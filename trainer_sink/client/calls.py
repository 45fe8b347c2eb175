"""The API's calls as values, the same for both clients: what to ask, and how to read the answer or its refusal."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from schemas import json_text
from trainer_sink.client.errors import PolynyaApiError, error_of

RETRIES: Final = 6
LONGEST_PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    wait_s: float = 0.0
    """How much longer than usual the answer may take."""
    accepts: tuple[int, ...] = ()
    """Statuses beside 2xx that are answers, too."""

    @property
    def headers(self) -> dict[str, str]:
        """Of the body."""
        return {"Content-Type": self.content_type} if self.body is not None else {}


def _segment(name: str) -> str:
    return quote(name, safe="")


def _json(value: Any) -> bytes:
    return json_text.dump(value).encode()


def submit(task: Mapping[str, Any]) -> Call:
    """Submit one task; one without an id gets one here, so that the call can be repeated."""
    return Call("POST", "/api/tasks", body=_json(with_id(task)))


def submit_many(tasks: list[Mapping[str, Any]]) -> Call:
    """Submit tasks, all or none."""
    return Call("POST", "/api/tasks/batch", body=_json([with_id(task) for task in tasks]))


def with_id(task: Mapping[str, Any]) -> dict[str, Any]:
    """The task under an id of its own."""
    return {**task, "task_id": task.get("task_id") or f"task-{uuid.uuid4().hex[:16]}"}


def status(task_id: str, *, wait_s: float = 0.0, sessions: bool = True) -> Call:
    """Where a task stands; with `wait_s` answered when it has ended, or then."""
    params = {"wait_s": f"{wait_s:g}", "sessions": str(sessions).lower()}
    return Call("GET", f"/api/tasks/{_segment(task_id)}", params, wait_s=wait_s)


def cancel(kind: str, name: str, reason: str | None) -> Call:
    """Cancel a task or a session."""
    body = _json({"reason": reason} if reason else {})
    return Call("POST", f"/api/{kind}/{_segment(name)}/cancel", body=body)


def trajectories(task_id: str, after: int, limit: int) -> Call:
    """A page of a task's trajectories."""
    params = {"arrays": "base64", "after": after, "limit": limit}
    return Call("GET", f"/api/tasks/{_segment(task_id)}/trajectories", params)


def trajectory(session_id: str) -> Call:
    """A session's trajectory."""
    return Call("GET", f"/api/sessions/{_segment(session_id)}/trajectory", {"arrays": "base64"})


def session(session_id: str) -> Call:
    """A session with its facts."""
    return Call("GET", f"/api/sessions/{_segment(session_id)}")


def nodes() -> Call:
    """The fleet."""
    return Call("GET", "/api/nodes")


def health() -> Call:
    """Whether the API can answer: also a no is an answer."""
    return Call("GET", "/api/health", accepts=(503,))


def read(call: Call, status_code: int, body: bytes, retry_after: str | None) -> Any:
    """The decoded answer; raises the API's refusal."""
    try:
        decoded: Any = json.loads(body) if body else None
    except ValueError:
        decoded = body.decode("utf-8", "replace")
    if 200 <= status_code < 300 or status_code in call.accepts:
        return decoded
    raise error_of(status_code, decoded, retry_after)


def pause_s(error: PolynyaApiError, tries: int) -> float:
    """How long to wait before the same call again."""
    return min(LONGEST_PAUSE_S, max(error.retry_after_s, 0.2 * 2.0**tries))
