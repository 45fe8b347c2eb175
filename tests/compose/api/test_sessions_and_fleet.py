"""Sessions, nodes, health, keys, limits: what isn't a task."""

from __future__ import annotations

import asyncio
import json

import pytest

from compose.api.docs_page import page
from compose.api.guard import Rates
from compose.api.service import document
from schemas import ids
from schemas.records import Control, Held, Stage
from tests.compose.api import facts
from tests.compose.api.conftest import serving, settled


async def test_a_session_has_its_facts_in_order_and_its_result(client, memory_bus):
    """The facts are read from the log; the counts and rewards come with the result."""
    (result,) = await facts.lived(memory_bus, "t-1", 1)
    await settled(client)
    session = (await client.get(f"/api/sessions/{result.session_id}")).json()
    assert [f["type"] for f in session["facts"]] == ["registered", *map(str, facts.FACTS), "ended"]
    assert (session["stage"], session["status"], session["worker_id"]) == ("ended", "completed", "worker-1")
    assert session["result"]["counts"]["calls"] == 1
    assert session["result"]["rewards"][0]["name"] == "reward"


async def test_a_session_that_runs_has_no_trajectory_yet(client, memory_bus):
    """404 that says where the session stands."""
    (session_id,) = await facts.registered(memory_bus, "t-1", 1)
    await settled(client)
    answer = await client.get(f"/api/sessions/{session_id}/trajectory")
    assert answer.status_code == 404
    assert "queued" in answer.json()["detail"]
    assert (await client.get(f"/api/sessions/{session_id}")).json()["result"] is None


async def test_sessions_are_listed_page_by_page(client, memory_bus):
    """Filters and pages; an unknown place to go on from is told."""
    await facts.registered(memory_bus, "t-1", 5)
    await facts.lived(memory_bus, "t-2", 2)
    await settled(client)
    seen, after = [], None
    while True:
        params = {"limit": 2, **({"after": after} if after else {})}
        answer = (await client.get("/api/sessions", params=params)).json()
        seen += [s["session_id"] for s in answer["sessions"]]
        if (after := answer["next"]) is None:
            break
    assert len(seen) == len(set(seen)) == 7
    queued = (await client.get("/api/sessions", params={"stage": "queued"})).json()["sessions"]
    assert {s["task_id"] for s in queued} == {"t-1"}
    of_task = (await client.get("/api/sessions", params={"task_id": "t-2"})).json()["sessions"]
    assert [s["index"] for s in of_task] == [0, 1]
    assert (await client.get("/api/sessions", params={"after": "nobody"})).status_code == 404
    assert (await client.get("/api/sessions", params={"stage": "nowhere"})).status_code == 422


async def test_cancelling_a_session_asks_for_that_one(client, memory_bus):
    """A control whose target is the session; none for one that has ended."""
    running, ended = await facts.registered(memory_bus, "t-1", 2)
    await facts.ran(memory_bus, "t-1", 1)
    await settled(client)
    assert (await client.post(f"/api/sessions/{running}/cancel")).json() == {"target": running, "sessions": 1}
    assert (await client.post(f"/api/sessions/{ended}/cancel")).json()["sessions"] == 0
    (control,) = [d.decode() for d in memory_bus.records("rollout.control")]
    assert isinstance(control, Control)
    assert (control.target, control.target_kind, control.issuer) == (running, "session", "api")


async def test_a_forgotten_session_is_gone(client, memory_bus):
    """A tombstone of its state takes the session, and with its last session the task, from memory."""
    (result,) = await facts.lived(memory_bus, "t-1", 1)
    await settled(client)
    await memory_bus.publish_raw("rollout.state", result.session_id.encode(), None)
    await settled(client)
    assert (await client.get(f"/api/sessions/{result.session_id}")).status_code == 404
    assert (await client.get("/api/tasks/t-1")).status_code == 404


async def test_nodes_are_known_by_their_last_heartbeat(client, memory_bus):
    """Workers and proxies, with what they hold; the address of the admin listener isn't told."""
    await memory_bus.publish(facts.beat("worker-1", holds=[Held(session_id="s", stage=Stage.RUNNING)]))
    await memory_bus.publish(facts.beat("proxy-1", "proxy", admin_address="http://secret"))
    await settled(client)
    answer = await client.get("/api/nodes")
    assert [(n["node_id"], n["role"], n["is_alive"]) for n in answer.json()["nodes"]] == [
        ("proxy-1", "proxy", True),
        ("worker-1", "worker", True),
    ]
    assert answer.json()["nodes"][1]["holds"] == [{"session_id": "s", "attempt": 1, "stage": "running"}]
    assert "secret" not in answer.text


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Basic the-key", "the-key", "Bearer the-key2"])
async def test_without_the_key_nothing_is_told(client, header):
    """401 with how to do it, also for paths that don't exist; health, the document and the page are open."""
    client.headers.pop("authorization")
    headers = {} if header is None else {"Authorization": header}
    for path in ("/api/tasks/t-1", "/api/sessions", "/nodes", "/rollout/status", "/nowhere"):
        answer = await client.get(path, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert (await client.post("/api/tasks", json={}, headers=headers)).status_code == 401
    for path in ("/openapi.json", "/docs"):
        assert (await client.get(path, headers=headers)).status_code == 200


async def test_bodies_have_a_limit(memory_bus, task):
    """413 by the length that is told, and by what comes when none is told."""

    async def chunks():
        for _ in range(100):
            yield b" " * 100

    async with serving(memory_bus, max_body_bytes=1000) as client:
        large = await client.post("/api/tasks", json=task(instruction="x" * 2000))
        headers = {"content-type": "application/json"}
        unknown = await client.post("/api/tasks", content=chunks(), headers=headers)
        assert (large.status_code, unknown.status_code) == (413, 413)
        assert (await client.post("/api/tasks", json=task())).status_code == 202


async def test_callers_have_a_rate(memory_bus):
    """Beyond its burst a caller is told when to come again."""
    async with serving(memory_bus, rate_per_s=0.1, rate_burst=3) as client:
        codes = [(await client.get("/api/nodes")).status_code for _ in range(5)]
        assert codes == [200, 200, 200, 429, 429]
        assert int((await client.get("/api/nodes")).headers["retry-after"]) >= 1


def test_a_bucket_fills_again_with_time() -> None:
    """The rate is per caller and second."""
    rates = Rates(2.0, 2)
    assert [rates.wait_s("a", 0.0) for _ in range(2)] == [0.0, 0.0]
    assert rates.wait_s("a", 0.0) == 0.5
    assert rates.wait_s("b", 0.0) == 0.0
    assert rates.wait_s("a", 0.5) == 0.0
    assert rates.wait_s("a", 0.5) > 0


async def test_after_a_start_reads_wait_for_the_log(memory_bus):
    """Not half an answer: wait, and after a while 503 with when to come again; submissions, too."""
    await facts.lived(memory_bus, "t-1", 1)
    async with memory_bus.outage(), serving(memory_bus, caught_up_within_s=0.1) as client:
        answer = await client.get("/api/tasks/t-1")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert (await client.get("/api/health")).json()["status"] == "starting"
    async with serving(memory_bus, caught_up_within_s=20) as client:
        assert (await client.get("/api/tasks/t-1")).status_code == 200


async def test_when_the_log_is_away_a_submission_is_told_to_come_again(memory_bus, task):
    """503, which may be repeated: under its id it is the same task."""
    async with serving(memory_bus, publish_within_s=0.1) as client:
        await settled(client)
        async with memory_bus.outage():
            late = await client.post("/api/tasks", json=task(task_id="t-1"))
        assert (late.status_code, late.headers["retry-after"]) == (503, "2")
        assert (await client.post("/api/tasks", json=task(task_id="t-1"))).status_code == 202


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 5000, b'{"a":' * 300 + b"1" + b"}" * 300, b"nul"])
async def test_what_is_no_json_is_refused(client, body):
    """422, never a fault: broken, not UTF-8, too deep."""
    for path in ("/api/tasks", "/api/tasks/batch", "/rollout/task/submit"):
        answer = await client.post(path, content=body, headers={"content-type": "application/json"})
        assert (path, answer.status_code) == (path, 422)
        assert "JSON" in answer.json()["detail"]


async def test_a_wrong_method_names_the_right_ones(client):
    """405 with every method of the path, whichever route has it."""
    answer = await client.put("/nodes/worker-1")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET")


async def test_browsers_of_other_origins_get_nothing(client):
    """No CORS headers, whoever asks."""
    answer = await client.get("/api/nodes", headers={"Origin": "http://elsewhere"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_fault_of_ours_says_no_more_than_that(memory_bus, monkeypatch):
    """500 in the one shape, without the exception's text."""
    async with serving(memory_bus) as client:
        monkeypatch.setattr("compose.api.routes.fleet.node_json", lambda _: 1 / 0)
        await memory_bus.publish(facts.beat())
        await settled(client)
        answer = await client.get("/api/nodes")
    assert answer.status_code == 500
    assert answer.json()["title"] == "a fault of ours"
    assert "ZeroDivision" not in answer.text


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """No script, no style or font of another host; every path of the document is on it."""
    made = json.loads(document())
    text = page(made)
    assert "<script" not in text
    assert "http://" not in text.replace("http://HOST", "")
    assert "https://" not in text
    for path in made["paths"]:
        assert path in text


async def test_two_apis_know_the_same(memory_bus):
    """Each follows the log by itself."""
    async with serving(memory_bus) as one, serving(memory_bus) as two:
        await facts.lived(memory_bus, "t-1", 2)
        await asyncio.gather(settled(one), settled(two))
        answers = [(await c.get("/api/tasks/t-1")).json() for c in (one, two)]
    assert answers[0] == answers[1]
    assert answers[0]["groups"][0]["group_id"] == ids.group_id("t-1")
