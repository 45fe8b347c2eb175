"""Several instances of one processor on the real Kafka: what one had in hand goes on at another."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import pytest

from bus import KafkaBus
from schemas import ids
from schemas.records import Record, SessionEvent, Status, TaskRequest
from schemas.records import SessionEventType as Fact
from tests.stream_processors.helpers import read_all, wait_for
from tests.stream_processors.test_service import TASK, processors

pytestmark = pytest.mark.broker

SESSIONS = 12
"""Enough that each of the test's partitions has some."""

QUEUE_S = 15.0
"""Past two rebalances; on a very busy machine the first instance tells some deadlines itself."""


def is_of(session_id: str, record: Record) -> bool:
    return getattr(record, "session_id", "") == session_id


def is_end_of(session_id: str, record: Record) -> bool:
    return is_of(session_id, record) and getattr(record, "type", None) is Fact.ENDED


async def test_an_instance_that_takes_over_keeps_the_time_of_every_session(kafka_bus: KafkaBus) -> None:
    """Rows that had to be read back at a rebalance meet their deadlines too."""
    group = ids.group_id("t")
    sessions = [ids.session_id(group, n) for n in range(SESSIONS)]
    async with AsyncExitStack() as second_life:
        async with processors(kafka_bus, "orchestrator"):
            await kafka_bus.publish(
                TaskRequest(task_id="t", num_samples=SESSIONS, spec={**TASK, "budgets": {"queue_s": QUEUE_S}})
            )
            for session_id in sessions:
                await wait_for(kafka_bus, "rollout.state", partial(is_of, session_id))
            await second_life.enter_async_context(processors(kafka_bus, "orchestrator"))
        for session_id in sessions:
            ended = await wait_for(kafka_bus, "rollout.sessions", partial(is_end_of, session_id), timeout_s=4 * QUEUE_S)
            assert isinstance(ended, SessionEvent)
            assert ended.status is Status.TIMEOUT
    facts = [r for r in await read_all(kafka_bus, "rollout.sessions") if isinstance(r, SessionEvent)]
    assert {f.session_id for f in facts if f.type is Fact.DEADLINE_HIT} == set(sessions)
