"""Kill -9: a process with all three processors dies in the middle of the work; its successor loses and repeats nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus import KafkaBus
from bus.admin import TopicAdmin
from schemas import ids
from schemas.records import Record, ScoredTrajectory, SessionEvent, TaskRequest, Trajectory
from schemas.records import SessionEventType as Fact
from stream_processors import ProcessorSettings, changelog_topics
from tests.conftest import TEST_PARTITIONS
from tests.stream_processors.helpers import read_all
from tests.stream_processors.test_service import TASK, FakeWorker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

SESSIONS = 6


@asynccontextmanager
async def process(bus: KafkaBus) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with all three processors, ready; killed hard on leaving."""
    script = Path(__file__).with_name("process.py")
    settings = ProcessorSettings(bus=bus.settings).model_dump_json()
    names = ("orchestrator", "assembler", "joiner")
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(script), settings, *names, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(90):
            while (line := await child.stdout.readline()) != b"READY\n":
                assert line, "the process ended before it was ready"
        reading = asyncio.create_task(child.stdout.read())
        yield child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGKILL)
        await child.wait()
    await reading


async def reached(bus: KafkaBus, topic: str, count: int) -> None:
    """Wait until that many different records stand on a topic."""
    seen: set[str] = set()
    async for delivery in bus.tail([topic]):
        seen.add(delivery.decode().event_id)
        if len(seen) >= count:
            return


def by_session(records: list[Record]) -> Counter[str]:
    """Different records per session."""
    different = {r.event_id: r for r in records}
    return Counter(r.key if isinstance(r, SessionEvent | Trajectory) else r.session_id for r in different.values())  # type: ignore[attr-defined]


async def test_a_killed_process_loses_nothing_and_duplicates_nothing(kafka_bus: KafkaBus) -> None:
    """Killed after the first trajectories, then started again: every session ends, is built and scored once by id."""
    async with TopicAdmin(kafka_bus.settings) as admin:
        await admin.apply(extra=changelog_topics(), partitions=TEST_PARTITIONS)
    task_id = "task-kill"
    sessions = [ids.session_id(ids.group_id(task_id), n) for n in range(SESSIONS)]
    worker = FakeWorker(kafka_bus)
    await kafka_bus.publish(
        TaskRequest(task_id=task_id, policy_id="policy", harness="shell", num_samples=SESSIONS, spec=TASK)
    )
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(worker.keep_beating())
        lives = [group.create_task(worker.live(s)) for s in sessions]
        async with process(kafka_bus):
            async with asyncio.timeout(60):
                await reached(kafka_bus, "trajectory.built", 2)
        async with process(kafka_bus) as child:
            async with asyncio.timeout(90):
                await reached(kafka_bus, "trajectory.scored", SESSIONS)
                await asyncio.gather(*lives)
            child.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await child.wait() == 0
        beating.cancel()
    scored = [r for r in await read_all(kafka_bus, "trajectory.scored") if isinstance(r, ScoredTrajectory)]
    contents = {(s.trajectory_id, s.revision, s.content_digest) for s in scored}
    assert sorted(t for t, _, _ in contents) == sorted({s.trajectory_id for s in scored})
    assert len(contents) == SESSIONS
    assert all(s.trajectory is not None and s.trajectory.counts.trained == 2 for s in scored)
    assert by_session(await read_all(kafka_bus, "trajectory.built")) == dict.fromkeys(sessions, 1)
    events = [e for e in await read_all(kafka_bus, "rollout.sessions") if isinstance(e, SessionEvent)]
    assert by_session([e for e in events if e.type is Fact.ENDED]) == dict.fromkeys(sessions, 1)
    assert by_session([e for e in events if e.type is Fact.GRANTED]) == dict.fromkeys(sessions, 1)
