"""What can't be read: poison goes to the dead-letter topic with its bytes, an unknown schema id stops its partition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus import Bus
from schemas.records import ScoredTrajectory
from schemas.topics import CONSUMERS, TOPICS, dead_letter_topic
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(300)]

POISON = b"\x00\x00\x00\x00\x03not an Avro body"
FOREIGN = b'{"json": "from somebody else"}'
UNKNOWN_ID = b"\x00\x00\x0f\x42\x3fwhatever"

CONSUMED = [(component, topic) for component, topics in CONSUMERS.items() for topic in topics]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack of its own, since poison stays on its topics."""
    state_dir: Path = tmp_path_factory.mktemp("poison")
    with Stack(
        state_dir, engine_url, {"POLYNYA_API": "true", "POLYNYA_API_CALLBACK_HOSTS": "127.0.0.1"}
    ).running() as stack:
        yield stack


@pytest.fixture
def standing(tmp_path: Path, engine_url: str) -> Iterator[Stack]:
    """A stack for the test that leaves partitions, and views of them, standing still."""
    with Stack(tmp_path, engine_url).running() as stack:
        yield stack


async def dead(bus: Bus) -> dict[tuple[str, str], list[tuple[bytes, dict[str, bytes]]]]:
    """Values and headers on every consumer's dead-letter topic, by component and source."""
    pairs = {dead_letter_topic(TOPICS[topic], component).name: (component, topic) for component, topic in CONSUMED}
    found: dict[tuple[str, str], list[tuple[bytes, dict[str, bytes]]]] = {pair: [] for pair in CONSUMED}
    async for delivery in bus.tail(list(pairs), start="earliest", until_end=True):
        found[pairs[delivery.topic]].append((delivery.value, delivery.headers))
    return found


async def results(stack: Stack, task_id: str) -> list[ScoredTrajectory]:
    """A task's scored trajectories, from a topic that poison stands on, too."""
    async with stack.bus() as bus:
        sound = [
            delivery.decode()
            async for delivery in bus.tail(["trajectory.scored"], start="earliest", until_end=True)
            if delivery.value not in (POISON, FOREIGN)
        ]
    return [s for s in sound if isinstance(s, ScoredTrajectory) and s.task_id == task_id]


@pytest.mark.parametrize("value", [POISON, FOREIGN], ids=["torn-body", "foreign-json"])
async def test_poison_on_every_consumed_topic_is_dead_lettered_and_life_goes_on(stack: Stack, value: bytes) -> None:
    """Each consumer puts the raw bytes, with the reason, on its own dead-letter topic; the next task still completes."""
    key = stack.settings.worker_id.encode()  # so that commands meet the partition that the worker reads
    async with stack.bus() as bus:
        for topic in sorted({t for _, t in CONSUMED}):
            await bus.publish_raw(topic, key, value, [])
        deadline = time.monotonic() + 60
        while missing := [pair for pair, letters in (await dead(bus)).items() if value not in [v for v, _ in letters]]:
            assert time.monotonic() < deadline, (missing, stack.logs())
            await asyncio.sleep(0.2)
        for (_, topic), letters in (await dead(bus)).items():
            headers = next(h for v, h in letters if v == value)
            assert headers["dead_reason"]
            assert headers["dead_topic"].decode() == topic
    stack.submit(stack.agent_task("turns=0", task_id=f"after-{len(value)}"), wait=True)
    assert len(await results(stack, f"after-{len(value)}")) == 1


async def test_an_unknown_schema_id_stops_the_partition_and_is_named(standing: Stack) -> None:
    """No dead letter for it: the message names the id, and the consumer's log says which partition waits."""
    stack = standing
    async with stack.bus() as bus:
        await bus.publish_raw("rollout.tasks", b"newer", UNKNOWN_ID, [])
        stack.until(
            lambda: "1000000" in stack.log("processors") or "999999" in stack.log("processors"), 40, "the id in the log"
        )
        values = [v for v, _ in (await dead(bus))["orchestrator", "rollout.tasks"]]
    assert UNKNOWN_ID not in values
