"""The API on the real Kafka: a task from its submission to its trajectories, with a restart in between, and its callback."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from schemas.records import TaskRequest
from tests.compose.api import facts
from tests.compose.api.conftest import serving, settled
from tests.compose.api.test_callbacks import SECRET, Receiver
from tests.trainer_sink.scored import trace
from trainer_sink.client import verify_callback

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


async def test_a_task_outlives_the_api_that_took_it(kafka_bus, task):
    """Submitted at one process, followed at the next; what came meanwhile is there, tokens and large ones included."""
    async with serving(kafka_bus) as client:
        body = task(task_id="t-1", num_samples=3)
        first = await client.post("/api/tasks", json=body)
        assert first.status_code == 202
    await facts.lived(kafka_bus, "t-1", 2, traces=[trace(0), trace(1, response=range(100_000))])
    async with serving(kafka_bus) as client:
        again = await client.post("/api/tasks", json=body)
        assert again.json() == first.json()
        assert (await client.post("/api/tasks", json=task(task_id="t-1"))).status_code == 409
        state = (await client.get("/api/tasks/t-1", params={"wait_s": 10})).json()
        assert (state["status"], state["scored"]) == ("ended", 2)
        seen, after = [], -1
        while after is not None:
            page = (await client.get("/api/tasks/t-1/trajectories", params={"limit": 1, "after": after})).json()
            seen += page["trajectories"]
            after = page["next"]
        assert [t["index"] for t in seen] == [0, 1]
        assert [len(t["response_ids"]) for t in seen[0]["traces"]] == [3, 100_000]
        session = (await client.get(f"/api/sessions/{seen[0]['session_id']}")).json()
        assert [f["type"] for f in session["facts"]] == ["registered", *map(str, facts.FACTS), "ended"]
        assert (await client.get("/api/health")).json()["lag"] == 0
    tasks = [d.decode() async for d in kafka_bus.tail(["rollout.tasks"], until_end=True)]
    assert len(tasks) == 1
    assert isinstance(tasks[0], TaskRequest)


async def test_a_callback_waits_on_the_log_for_the_next_process(kafka_bus, task):
    """The receiver refuses twice, the process ends in between, the next one delivers, signed; commits keep it from coming again."""
    fields = {
        "callback_key": SecretStr(SECRET),
        "callback_hosts": ("127.0.0.1",),
        "callback_first_pause_s": 1.0,
        "callback_longest_pause_s": 1.0,
    }
    async with Receiver(500, 500).listening() as receiver:
        async with serving(kafka_bus, **fields) as client:
            await client.post("/api/tasks", json=task(task_id="t-1", callback_url=receiver.url))
            await facts.registered(kafka_bus, "t-1", 2)
            await facts.told(kafka_bus, "t-1", 0, 2)
            async with asyncio.timeout(60):
                await receiver.wait_for(1)
        async with serving(kafka_bus, **fields) as client:
            async with asyncio.timeout(60):
                while (await client.get("/api/tasks/t-1")).json()["callbacks"]["delivered"] < 1:
                    await asyncio.sleep(0.05)
        got = list(receiver.got)
        assert len({headers["Polynya-Delivery"] for headers, _ in got}) == 1
        assert all(verify_callback(SECRET, body, headers["Polynya-Signature"]) for headers, body in got)
        async with serving(kafka_bus, **fields) as client:
            await settled(client)
            await facts.told(kafka_bus, "t-1", 1, 2)
            async with asyncio.timeout(60):
                while (await client.get("/api/tasks/t-1")).json()["callbacks"]["delivered"] < 3:
                    await asyncio.sleep(0.05)
        assert len(receiver.got) == len(got) + 2
