"""The client against an API that a test writes down: what it asks, what it repeats, and what it raises."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import httpx
import numpy as np
import pytest

from schemas.arrays import pack_ids, pack_logprobs, pack_mask
from trainer_sink import PolynyaClient
from trainer_sink.client import (
    ApiUnavailableError,
    AsyncPolynyaClient,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    TaskTimeoutError,
    TooManyRequestsError,
    UnauthorizedError,
    calls,
)


class Api:
    """Answers in turn; remembers what was asked."""

    def __init__(self, *answers: tuple[int, Any] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(
            answer[0], json=answer[1], headers={"retry-after": "0"} if answer[0] in (429, 503) else {}
        )

    def client(self, **options: Any) -> PolynyaClient:
        return PolynyaClient("http://api/", "k", transport=httpx.MockTransport(self), **options)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Retries follow at once."""
    monkeypatch.setattr(calls, "pause_s", lambda *_: 0.0)


def state(status: str, scored: int = 0) -> tuple[int, dict[str, Any]]:
    """A task's state as the API tells it."""
    body = {"task_id": "t", "status": status, "num_samples": 2, "scored": scored, "mean_reward": None, "stages": {}}
    return 200, body


def packed() -> dict[str, Any]:
    """A trajectory with base64 arrays."""

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    trace = {
        "index": 0,
        "branch": "main",
        "prompt_ids": text(pack_ids([1, 2])),
        "response_ids": text(pack_ids([3, 4])),
        "loss_mask": text(pack_mask([1, 0])),
        "logprobs": text(pack_logprobs([-0.5, 0.0])),
        "weight": 1.0,
        "reward": 1.0,
        "is_off_context": False,
        "messages": [],
        "tools": [],
    }
    names = ("session_id", "task_id", "group_id", "trajectory_id", "status", "boundary", "error")
    return {**dict.fromkeys(names, "x"), "index": 0, "revision": 1, "reward": 1.0, "traces": [trace]}


def test_a_submission_has_an_id_before_it_is_sent_so_that_it_can_be_repeated() -> None:
    """After a 503 the same task goes out under the same id; the key goes with each request."""
    api = Api((503, {"detail": "not now"}), httpx.ConnectError("gone"), (202, {"task_id": "as-told"}))
    with api.client() as client:
        assert client.submit({"instruction": "hi"}) == "as-told"
    sent = [json.loads(request.content) for request in api.asked]
    assert len({body["task_id"] for body in sent}) == 1
    assert all(request.headers["authorization"] == "Bearer k" for request in api.asked)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthorizedError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, InvalidRequestError),
        (422, InvalidRequestError),
    ],
)
def test_refusals_are_typed_and_not_repeated(status: int, kind: type[Exception]) -> None:
    """The exception says what, what to do, and which fields."""
    problem = {"detail": "why", "hint": "do this", "errors": [{"path": "a.b", "problem": "bad"}]}
    api = Api((status, problem))
    with api.client() as client, pytest.raises(kind, match=r"why; do this") as refused:
        client.submit({})
    assert refused.value.errors == {"a.b": "bad"}
    assert refused.value.status == status
    assert len(api.asked) == 1


@pytest.mark.parametrize(("status", "kind"), [(429, TooManyRequestsError), (503, ApiUnavailableError)])
def test_what_may_pass_is_repeated_for_a_while(status: int, kind: type[Exception]) -> None:
    """Then it is raised."""
    api = Api(*[(status, {"detail": "later"})] * 3)
    with api.client(retries=2) as client, pytest.raises(kind):
        client.nodes()
    assert len(api.asked) == 3


def test_waiting_asks_until_the_end_and_tells_progress() -> None:
    """Each answer is shown; the question itself waits at the API."""
    api = Api(state("accepted"), state("running", 1), state("ended", 2))
    seen: list[int] = []
    with api.client() as client:
        assert client.wait("t", 60, lambda s: seen.append(s.scored)).is_ended
    assert seen == [0, 1, 2]
    assert all(float(request.url.params["wait_s"]) > 0 for request in api.asked)


def test_waiting_has_an_end() -> None:
    """A TimeoutError that says how far it was."""
    api = Api(state("running", 1))
    with api.client() as client, pytest.raises(TimeoutError, match="1 of 2 sessions scored") as late:
        client.wait("t", 0)
    assert isinstance(late.value, TaskTimeoutError)


def test_trajectories_are_numpy_arrays_from_all_pages() -> None:
    """Pages are followed to the last; arrays have their dtypes."""
    api = Api(
        (200, {"trajectories": [packed()], "next": 0}),
        (200, {"trajectories": [], "next": 1}),
        (200, {"trajectories": [packed()], "next": None}),
    )
    with api.client() as client:
        first, second = client.get_trajectories("a/b")
    (trace,) = first.traces
    assert np.array_equal(trace.response_ids, [3, 4])
    assert (trace.response_ids.dtype, trace.loss_mask.dtype, trace.logprobs.dtype) == ("int32", "uint8", "float32")
    assert np.array_equal(trace.prompt_ids, second.traces[0].prompt_ids)
    assert [request.url.params["after"] for request in api.asked] == ["-1", "0", "1"]
    assert api.asked[0].url.raw_path.startswith(b"/api/tasks/a%2Fb/trajectories")


def test_health_that_is_not_ok_is_an_answer() -> None:
    """503 from there isn't an error."""
    with Api((503, {"status": "starting"})).client() as client:
        assert client.health() == {"status": "starting"}


async def test_the_asynchronous_client_does_the_same() -> None:
    """Submit, wait, cancel, trajectories, session, nodes, health."""
    answers = Api(
        (503, {}),
        (202, {"task_id": "t"}),
        (202, {"tasks": [{"task_id": "u"}]}),
        state("running"),
        state("ended"),
        state("ended"),
        (202, {"sessions": 2}),
        (202, {"sessions": 1}),
        (200, {"trajectories": [packed()], "next": None}),
        (200, packed()),
        (200, {"session_id": "s"}),
        (200, {"nodes": []}),
        (200, {"status": "ok"}),
    )
    seen: list[str] = []
    async with AsyncPolynyaClient("http://api", "k", transport=httpx.MockTransport(answers)) as client:
        assert await client.submit({}) == "t"
        assert await client.submit_many([{}]) == ["u"]
        assert (await client.wait("t", 10, lambda s: seen.append(s.status))).is_ended
        assert (await client.status("t")).is_ended
        assert await client.cancel("t", "why") == 2
        assert await client.cancel_session("s") == 1
        assert len(await client.get_trajectories("t")) == 1
        assert (await client.get_trajectory("s")).reward == 1.0
        assert await client.session("s") == {"session_id": "s"}
        assert await client.nodes() == []
        assert (await client.health())["status"] == "ok"
    assert seen == ["running", "ended"]
    assert answers.answers == []


def test_the_package_stays_light() -> None:
    """Neither httpx nor the client is imported by `import trainer_sink`."""
    code = "import sys, trainer_sink; print([m for m in ('httpx', 'trainer_sink.client') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
