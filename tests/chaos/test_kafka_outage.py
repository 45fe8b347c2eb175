"""Kafka is away for 20 s in mid-session: the sessions finish, nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.kafka import KafkaCluster
from schemas.records import CompletionRecord, Status
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(400)]

OUTAGE_S = 20.0


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack of its own."""
    state_dir: Path = tmp_path_factory.mktemp("outage")
    with Stack(state_dir, engine_url).running() as stack:
        yield stack


@pytest.mark.parametrize("how", ["frozen", "stopped"])
async def test_sessions_outlive_an_outage_of_kafka(stack: Stack, how: str) -> None:
    """Agents go on calling through the outage (the spool takes their records); afterwards everything is on the log."""
    task_id = f"outage-{how}"
    stack.submit(stack.agent_task("turns=20 delay_ms=40", task_id=task_id, num_samples=3))
    stack.until(lambda: len(stack.journal()) >= 3, 60, "the first answers")
    cluster = KafkaCluster.attach(stack.state_dir / "kafka")
    if how == "frozen":
        cluster.suspend()
    else:
        await asyncio.to_thread(cluster.stop)
    during_from = time.monotonic()
    before = len(stack.journal())
    await asyncio.sleep(OUTAGE_S)  # the outage itself is the subject here
    during = len(stack.journal()) - before
    if how == "frozen":
        cluster.resume()
    else:
        await asyncio.to_thread(cluster.start_node, 1, detach=True)
    assert time.monotonic() - during_from >= OUTAGE_S
    assert during > 0, "no agent got an answer while Kafka was away"
    deadline = time.monotonic() + 200
    while len(results := await stack.results(task_id)) < 3:
        assert time.monotonic() < deadline, stack.logs()
        await asyncio.sleep(1)
    assert {r.status for r in results} == {Status.COMPLETED}
    on_log = {r.completion_id for r in await stack.read("capture.completions") if isinstance(r, CompletionRecord)}
    received = {e["id"].removeprefix("chatcmpl-") for e in stack.journal()}
    assert received <= on_log
    for result in results:
        assert result.trajectory is not None
        assert (result.trajectory.counts.calls, result.trajectory.counts.trained) == (21, 21)
