"""Several trainers on one fleet: the real Kafka and the real orchestrator; only what a session does is played."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from bus import KafkaBus
from schemas import ids
from schemas.records import BatchConsumed
from tests.e2e.fleet import POLICY, Fleet
from tests.stream_processors.test_service import processors
from trainer_sink import Group, GroupConsumer, RecordsExpiredError
from trainer_sink.reader import Start

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(300)]

WITHIN_S = 60.0
SCORED = "trajectory.scored"


@asynccontextmanager
async def fleet_on(bus: KafkaBus) -> AsyncIterator[Fleet]:
    """An orchestrator and a fleet."""
    async with processors(bus, "orchestrator", tick_s=0.1), Fleet.running(bus) as fleet:
        yield fleet


async def take(consumer: GroupConsumer, count: int) -> list[Group]:
    """So many groups, as they come."""
    async with asyncio.timeout(WITHIN_S):
        return [await anext(consumer) for _ in range(count)]


def tasks(groups: list[Group]) -> list[str]:
    """Whose they are, sorted."""
    return sorted(group.spec.task_id for group in groups)


async def test_three_trainers_share_a_fleet(kafka_bus: KafkaBus) -> None:
    """Each sees the groups of its data set; the slow one holds back its own tasks only; a late one begins where it says."""
    names = {kind: [f"{kind}{n}" for n in range(6)] for kind in ("math", "code")}
    async with (
        fleet_on(kafka_bus) as fleet,
        GroupConsumer(kafka_bus, "fast", policy_id=POLICY, metadata={"data_set": "math"}, max_lag=2) as fast,
        GroupConsumer(kafka_bus, "slow", policy_id=POLICY, task_ids=["code*"], max_lag=2) as slow,
    ):
        for n in range(6):
            for kind, data_set in (("math", "math"), ("code", "swe")):
                await fleet.submit(names[kind][n], data_set=data_set, split="train")
        got: list[Group] = []
        for step in range(1, 7):
            got += await take(fast, 1)
            await fast.commit(step)
        assert tasks(got) == names["math"]
        # The slow one has taken a group and committed nothing: two of its tasks are out, the other four wait.
        (first,) = await take(slow, 1)
        await fleet.until(lambda: len(fleet.closed) == 8)
        assert len(fleet.admitted_tasks("code")) == 2
        await slow.commit(1)
        await fleet.until(lambda: len(fleet.admitted_tasks("code")) == 3)
        rest = []
        for step in range(2, 7):
            rest += await take(slow, 1)
            await slow.commit(step)
        assert tasks([first, *rest]) == names["code"]

        noon = int(time.time() * 1000)
        await asyncio.sleep(0.002)  # the log's times are whole milliseconds
        await fleet.submit("code9", data_set="swe", split="train")
        (last,) = await take(slow, 1)
        assert last.spec.task_id == "code9"
        starts: list[tuple[Start, list[str]]] = [
            ("earliest", [*names["code"], "code9", *names["math"]]),
            (noon, ["code9"]),
        ]
        for start, expected in starts:
            # A late trainer reads the past; nothing is run again for it.
            async with GroupConsumer(
                kafka_bus, f"late-{start}", policy_id=POLICY, metadata={"split": "train"}, start=start, until_end=True
            ) as late:
                assert tasks([group async for group in late]) == expected
                await late.commit(1)
        assert fleet.requeued == []
    told = [d.decode() async for d in kafka_bus.tail(["trainer.consumed"], until_end=True)]
    skipped = {b.trainer_id: s.reason for b in told if isinstance(b, BatchConsumed) for s in b.skipped}
    assert skipped == {"fast": "metadata", "slow": "task"}


async def test_stale_groups_are_run_again_for_their_trainer_and_trained(kafka_bus: KafkaBus) -> None:
    """Sampled four versions ago: skipped, run again under the new weights, trained once; another trainer takes the first ones."""
    names = [f"t{n}" for n in range(3)]
    async with fleet_on(kafka_bus) as fleet:
        await fleet.publish_weights("1")
        for name in names:
            await fleet.submit(name, max_requeues=2)
        await fleet.until(lambda: len(fleet.closed) == 3)
        for version in ("2", "3", "4", "5"):  # the artificial lag
            await fleet.publish_weights(version)
        async with (
            GroupConsumer(kafka_bus, "strict", policy_id=POLICY, max_policy_lag=2) as strict,
            GroupConsumer(kafka_bus, "lenient", policy_id=POLICY) as lenient,
        ):
            # It has trained nothing and can commit nothing: the skips are told while it waits.
            again = await take(strict, 3)
            batch = await strict.commit(1)
            old = await take(lenient, 3)
            late = await lenient.commit(1)
            assert tasks(again) == tasks(old) == names
            first_ids = {ids.group_id(name) for name in names}
            assert {g.group_id for g in old} == first_ids
            assert {g.group_id for g in again} == {ids.requeue_group_id(g, "strict") for g in first_ids}
            assert {g.spec.requeue_of for g in again} == first_ids
            assert (batch.staleness_max, late.staleness_max) == (0.0, 4.0)
            assert {e.for_trainer for e in fleet.requeued} == {"strict"}
            assert {e.group_id for e in fleet.requeued} == first_ids
            # While both run: the same rule for what the weights overtake.
            await fleet.submit("moving", max_requeues=2)
            (moving,) = await take(lenient, 1)
            for version in ("6", "7", "8"):
                await fleet.publish_weights(version)
            async with asyncio.timeout(WITHIN_S):
                while strict.current_version != "8":
                    await asyncio.sleep(0.05)
            (last,) = await take(strict, 1)
            assert (last.group_id, last.staleness.max) == (ids.requeue_group_id(moving.group_id, "strict"), 0.0)
            await strict.commit(2)
    told = [d.decode() async for d in kafka_bus.tail(["trainer.consumed"], until_end=True)]
    stale = [s.group_id for b in told if isinstance(b, BatchConsumed) and b.trainer_id == "strict" for s in b.skipped]
    assert sorted(stale) == sorted({*first_ids, moving.group_id})


async def test_an_offset_that_retention_has_passed_stops_with_a_clear_error(kafka_bus: KafkaBus) -> None:
    """The trainer was away for longer than the log keeps: it says what is missing, or goes on and counts, as it was told to."""
    async with fleet_on(kafka_bus) as fleet:
        async with GroupConsumer(kafka_bus, "away", policy_id=POLICY) as consumer:
            await fleet.submit("before")
            await take(consumer, 1)
            await consumer.commit(1)
            state = consumer.state_dict()
        home = await kafka_bus.partition_for(SCORED, ids.group_id("before"))
        missed = [n for n in map("t{}".format, range(40)) if await _home(kafka_bus, n) == home][:3]
        for name in missed:
            await fleet.submit(name)
        await fleet.until(lambda: len(fleet.closed) == 4)
        end = (await kafka_bus.end_offsets(SCORED))[home]
        await _expire(kafka_bus, home, end - 2)
        strict = GroupConsumer(kafka_bus, "away", policy_id=POLICY)
        strict.load_state_dict(state)
        async with strict:
            with pytest.raises(RecordsExpiredError, match=rf"retention has taken \[2, {end - 2}\).*on_expired='count'"):
                await take(strict, 1)
        lenient = GroupConsumer(kafka_bus, "away", policy_id=POLICY, on_expired="count", until_end=True)
        lenient.load_state_dict(state)
        async with lenient:
            assert tasks([group async for group in lenient]) == [missed[-1]]
        assert lenient.counts == {"expired": end - 2 - 2, "kept": 2}


async def _home(bus: KafkaBus, task_id: str) -> int:
    return await bus.partition_for(SCORED, ids.group_id(task_id))


async def _expire(bus: KafkaBus, partition: int, before: int) -> None:
    """What retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bus.settings.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(bus.settings.physical(SCORED), partition): RecordsToDelete(before)})
    finally:
        await admin.close()
