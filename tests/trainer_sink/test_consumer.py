"""The group consumer, on the bus in memory and on the real Kafka: one set of behaviours for both."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterable
from typing import Any

import pytest

from bus import Bus, BusRefusedError, BusUnavailableError
from bus.dead_letters import DeadLetter
from bus.memory import MemoryBus
from schemas import UnknownSchemaIdError, codec, ids, json_text
from schemas.records import (
    BatchConsumed,
    Control,
    PolicyEvent,
    PolicyEventType,
    Record,
    ScoredTrajectory,
    Status,
    TrainerRegistered,
    VersionSpan,
)
from tests.trainer_sink.scored import POLICY, scored, trace, whole
from trainer_sink import CheckpointMismatchError, Group, GroupConsumer, RecordsExpiredError, SinkStateError
from trainer_sink import consumer as consumer_module
from trainer_sink import reader as reader_module

TOPIC = "trajectory.scored"
DEADLINE_S = 30.0


async def _publish(bus: Bus, records: Iterable[ScoredTrajectory]) -> None:
    for record in records:
        await bus.publish(record)


async def _next(consumer: GroupConsumer) -> Group:
    return await asyncio.wait_for(anext(consumer), DEADLINE_S)


async def _all(consumer: GroupConsumer) -> list[str]:
    async with asyncio.timeout(DEADLINE_S):
        return [group.group_id async for group in consumer]


async def _consumed(bus: Bus) -> list[Record]:
    async with asyncio.timeout(DEADLINE_S):
        return [d.decode() async for d in bus.tail(["trainer.consumed"], until_end=True)]


async def _batches(bus: Bus) -> list[BatchConsumed]:
    return [r for r in await _consumed(bus) if isinstance(r, BatchConsumed)]


class Behaviours:
    """What holds on any bus."""

    async def test_groups_come_whole_and_a_commit_is_published(self, bus: Bus) -> None:
        """Two groups interleaved, one session failed: both come out, and one record says which step trained them."""
        a, b = whole("a", 2), [scored("b", 0, 2), scored("b", 1, 2, status=Status.FAILED, reward=None)]
        async with GroupConsumer(bus, "me", policy_id=POLICY) as consumer:
            await _publish(bus, [a[0], b[0], b[1], a[1]])
            groups = {g.group_id: g for g in [await _next(consumer), await _next(consumer)]}
            await consumer.commit(step=1, policy_version="7", staleness_max=2.0, details={"loss": 0.5})
        assert {g: list(groups[g].scored) for g in groups} == {a[0].group_id: a, b[0].group_id: b}
        (batch,) = await _batches(bus)
        assert set(batch.groups) == set(groups)
        assert (batch.trainer_id, batch.step, batch.policy_id, batch.policy_version) == ("me", 1, POLICY, "7")
        assert batch.details["loss"] == 0.5
        assert batch.details["counts"] == {"kept": 4}
        ends = await bus.end_offsets(TOPIC)
        assert {o.partition: o.offset for o in batch.offsets} == {p: end for p, end in ends.items() if end}

    async def test_a_trainer_registers_with_its_filter(self, bus: Bus) -> None:
        """Before the first group, so that the orchestrator knows for whom it produces."""
        async with GroupConsumer(bus, "me", policy_id=POLICY, harness="pi", start=123, ttl_s=45.0):
            pass
        (record,) = await _consumed(bus)
        assert isinstance(record, TrainerRegistered)
        assert (record.trainer_id, record.policy_id, record.start, record.ttl_s) == ("me", POLICY, 123, 45.0)
        assert record.filter["harnesses"] == ["pi"]

    async def test_the_registration_is_repeated_as_a_heartbeat(self, bus: Bus) -> None:
        """A trainer that only waits stays registered."""
        async with GroupConsumer(bus, "me", ttl_s=0.3), asyncio.timeout(DEADLINE_S):
            seen = 0
            async for delivery in bus.tail(["trainer.consumed"]):
                seen += isinstance(delivery.decode(), TrainerRegistered)
                if seen == 3:
                    break
        assert seen == 3

    async def test_unwanted_groups_are_reported_with_their_reasons(self, bus: Bus) -> None:
        """Filtered groups and the trainer's own skips stand in the next commit, once."""
        await _publish(bus, whole("theirs", 2, spec={"policy_id": "another"}))
        await _publish(bus, whole("spliced", 1, traces=[trace(is_off_context=True)]))
        await _publish(bus, [*whole("old", 1), *whole("fine", 1)])
        async with GroupConsumer(bus, "me", policy_id=POLICY, until_end=True) as consumer:
            async for group in consumer:
                if group.scored[0].task_id == "old":
                    consumer.skip(group, "stale")
            await consumer.commit(step=1)
            await consumer.commit(step=2)
        first, second = await _batches(bus)
        assert first.groups == [ids.group_id("fine")]
        assert {s.group_id: s.reason for s in first.skipped} == {
            ids.group_id("theirs"): "policy",
            ids.group_id("spliced"): "off_context",
            ids.group_id("old"): "stale",
        }
        assert (second.groups, second.skipped) == ([], [])

    async def test_skips_are_told_while_the_trainer_waits(self, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        """No commit can come before the group that it waits for, and that may be just the re-run of what it skipped."""
        monkeypatch.setattr(consumer_module, "REPORT_AFTER_S", 0.05)
        await _publish(bus, [*whole("one", 1), *whole("dull", 2)])
        async with GroupConsumer(bus, "me", policy_id=POLICY, min_usable=2) as consumer:
            waiting = asyncio.ensure_future(anext(consumer))
            dull = (await asyncio.wait_for(waiting, DEADLINE_S)).group_id
            await consumer.commit(step=4)
            await _publish(bus, whole("two", 1))
            waiting = asyncio.ensure_future(anext(consumer))
            async with asyncio.timeout(DEADLINE_S):
                while not any(s.group_id == ids.group_id("two") for b in await _batches(bus) for s in b.skipped):
                    await asyncio.sleep(0.02)
            await _publish(bus, whole("again", 2))
            await asyncio.wait_for(waiting, DEADLINE_S)
            await consumer.commit(step=5)
        told = [b for b in await _batches(bus) if b.skipped]
        assert sorted(s.group_id for b in told for s in b.skipped) == sorted(map(ids.group_id, ("one", "two")))
        interim = next(b for b in await _batches(bus) if b.is_interim and b.skipped[0].group_id == ids.group_id("two"))
        assert (interim.step, interim.groups, interim.skipped[0].reason) == (4, [], "short")
        steps = [b for b in await _batches(bus) if not b.is_interim]
        assert [(b.step, b.groups) for b in steps] == [(4, [dull]), (5, [ids.group_id("again")])]
        assert len({b.event_id for b in await _batches(bus)}) == len(await _batches(bus))

    async def test_lags_are_counted_by_the_timeline(self, bus: Bus) -> None:
        """Published versions are followed; a group over the bound is skipped as stale, and the commit says how old the others were."""
        for version in ("1", "2", "3"):
            await bus.publish(PolicyEvent(policy_id=POLICY, type=PolicyEventType.PUBLISHED, version=version, at=1))
        await _publish(bus, [*_sampled_by("old", "1"), *_sampled_by("new", "2")])
        async with GroupConsumer(bus, "me", policy_id=POLICY, max_policy_lag=1) as consumer:
            assert (await _next(consumer)).group_id == ids.group_id("new")
            async with asyncio.timeout(DEADLINE_S):
                while consumer.counts != {"kept": 2}:
                    await asyncio.sleep(0.01)
            await bus.publish(PolicyEvent(policy_id=POLICY, type=PolicyEventType.PUBLISHED, version="4", at=2))
            await consumer.commit(step=1)
            await _publish(bus, _sampled_by("newer", "4"))
            group = await _next(consumer)
            consumer.policy_version = "6"
            await _publish(bus, [*_sampled_by("four", "4"), *_sampled_by("five", "5")])
            last = await _next(consumer)
            batch = await consumer.commit(step=2)
        assert (group.group_id, last.group_id) == (ids.group_id("newer"), ids.group_id("five"))
        first, second = [b for b in await _batches(bus) if not b.is_interim]
        assert (first.staleness_max, first.staleness_mean) == (1.0, 1.0)
        assert (second.staleness_max, second.policy_version) == (1.0, "6")
        assert batch == second
        skipped = {s.group_id: s.reason for b in await _batches(bus) for s in b.skipped}
        assert skipped == {ids.group_id("old"): "stale", ids.group_id("four"): "stale"}

    async def test_ranks_share_the_groups_and_read_for_each_other(self, bus: Bus) -> None:
        """Each group comes to one rank, also one that another rank had run again; each registers with what it reads."""
        names = [f"g{n}" for n in range(8)]
        for name in names:
            await _publish(bus, whole(name, 1, spec={"for_trainer": "me.rank0"} if name == "g3" else {}))
        got: list[str] = []
        for rank in (0, 1):
            async with GroupConsumer(bus, "me", rank=rank, world_size=2, until_end=True) as consumer:
                assert consumer.trainer_id == f"me.rank{rank}"
                got += await _all(consumer)
        assert sorted(got) == sorted(map(ids.group_id, names))
        beats = [r for r in await _consumed(bus) if isinstance(r, TrainerRegistered)]
        assert {b.trainer_id: b.partitions for b in beats} == {"me.rank0": [0, 2], "me.rank1": [1]}

    async def test_a_restart_from_a_checkpoint_goes_on_exactly_there(self, bus: Bus) -> None:
        """Committed groups don't come again, a yielded one that wasn't committed does, later ones follow."""
        await _publish(bus, [scored("open", 0, 2)])
        for name in ("one", "two", "three"):
            await _publish(bus, whole(name, 2))
        first: list[str] = []
        async with GroupConsumer(bus, "me", prefetch=1) as consumer:
            first.append((await _next(consumer)).group_id)
            await consumer.commit(step=1)
            state = consumer.state_dict()
            await _next(consumer)  # yielded, not committed: the crash comes here
        again = GroupConsumer(bus, "me", until_end=True)
        again.load_state_dict(state)
        await _publish(bus, [scored("open", 1, 2), *whole("four", 1)])
        async with again:
            rest = await _all(again)
        assert sorted(first + rest) == sorted(map(ids.group_id, ("open", "one", "two", "three", "four")))

    async def test_what_is_saved_within_a_commit_already_holds_it(self, bus: Bus) -> None:
        """A trainer that dies between its saving and the publication says after its restart what it has trained, and goes on behind it."""
        for name in ("one", "two"):
            await _publish(bus, whole(name, 2))
        await _publish(bus, whole("theirs", 1, spec={"policy_id": "another"}))
        saved: list[dict[str, Any]] = []

        async def save(state: dict[str, Any]) -> None:
            saved.append(state)
            assert await _batches(bus) == []
            raise ConnectionError("killed here")

        async with GroupConsumer(bus, "me", policy_id=POLICY, prefetch=1) as consumer:
            first = (await _next(consumer)).group_id
            with pytest.raises(ConnectionError):
                await consumer.commit(step=1, save=save)
        again = GroupConsumer(bus, "me", policy_id=POLICY, until_end=True)
        again.load_state_dict(saved[0])
        async with again:
            rest = await _all(again)
            await again.commit(step=2)
        republished, second = await _batches(bus)
        assert republished.groups == [first]
        assert (republished.step, second.groups) == (1, rest)
        assert sorted([first, *rest]) == sorted(map(ids.group_id, ("one", "two")))
        told = [s.group_id for batch in (republished, second) for s in batch.skipped]
        assert told == [ids.group_id("theirs")]

    async def test_after_a_restore_the_last_batch_is_published_again(self, bus: Bus) -> None:
        """If the first publish was lost on the way, the orchestrator still learns of it; its id makes it harmless."""
        await _publish(bus, whole("a", 1))
        async with GroupConsumer(bus, "me") as consumer:
            await _next(consumer)
            await consumer.commit(step=1)
            state = consumer.state_dict()
        again = GroupConsumer(bus, "me", until_end=True)
        again.load_state_dict(state)
        async with again:
            assert await _all(again) == []
            with pytest.raises(SinkStateError, match="step 1 isn't after step 1"):
                await again.commit(step=1)
        first, second = await _batches(bus)
        assert first == second
        assert first.event_id == second.event_id

    async def test_start_latest_sees_only_what_comes(self, bus: Bus) -> None:
        """And a checkpoint before the first record remembers that beginning."""
        await _publish(bus, whole("before", 1))
        async with GroupConsumer(bus, "me", start="latest") as consumer:
            state = consumer.state_dict()
        await _publish(bus, whole("between", 1))
        again = GroupConsumer(bus, "me", until_end=True)
        again.load_state_dict(state)
        async with again:
            assert await _all(again) == [ids.group_id("between")]

    async def test_start_at_a_time(self, bus: Bus) -> None:
        """Groups published after that moment come, in all partitions; earlier ones don't."""
        await _publish(bus, whole("before", 1))
        async with asyncio.timeout(DEADLINE_S):
            (old,) = [d.timestamp_ms async for d in bus.tail([TOPIC], until_end=True)]
        async with GroupConsumer(bus, "me", start=old + 3_600_000, until_end=True) as consumer:
            assert await _all(consumer) == []
        async with GroupConsumer(bus, "me", start=old, until_end=True) as consumer:
            assert await _all(consumer) == [ids.group_id("before")]

    async def test_a_part_of_the_partitions(self, bus: Bus) -> None:
        """Sinks that share the partitions share the groups: each comes to exactly one."""
        names = [f"g{n}" for n in range(8)]
        for name in names:
            await _publish(bus, whole(name, 2))
        got: list[str] = []
        for part in ([0], [1, 2]):
            async with GroupConsumer(bus, "me", partitions=part, until_end=True) as consumer:
                got += await _all(consumer)
        assert sorted(got) == sorted(map(ids.group_id, names))
        with pytest.raises(ValueError, match=r"no partitions \[99\]"):
            await GroupConsumer(bus, "me", partitions=[99]).__aenter__()

    async def test_poison_goes_to_the_trainers_own_dead_letters(self, bus: Bus) -> None:
        """Torn bytes, a foreign record and one without its spec: each is set aside whole, and the sink goes on."""
        torn = b"\x00\x00\x00\x00\x0dtorn"
        await bus.publish_raw(TOPIC, b"k", torn, [("session_id", b"s")])
        await bus.publish_raw(TOPIC, b"k", b"no frame")
        from schemas import encode

        await bus.publish_raw(TOPIC, b"k", encode(Control(target="x")).value)
        await _publish(bus, [_without_spec(), *whole("fine", 1)])
        async with GroupConsumer(bus, "me.1", until_end=True) as consumer:
            assert await _all(consumer) == [ids.group_id("fine")]
            assert consumer.counts == {"unreadable": 4, "kept": 1}
        async with asyncio.timeout(DEADLINE_S):
            dead = [d async for d in bus.tail([f"{TOPIC}.sink-me.1.dead"], until_end=True)]
        assert torn in [d.value for d in dead]
        assert sorted(DeadLetter.read(d).reason for d in dead) == [
            "malformed",
            "malformed",
            "spec_missing",
            "wrong_record",
        ]

    async def test_an_unreadable_session_ends_its_group(self, bus: Bus) -> None:
        """The headers still say whose it was, so the group is skipped instead of waiting for ever."""
        from schemas import encode

        group = whole("g", 2)
        encoded = encode(group[0])
        await bus.publish_raw(TOPIC, encoded.key, encoded.value[:-3], encoded.headers)
        await _publish(bus, group[1:])
        async with GroupConsumer(bus, "me", until_end=True) as consumer:
            assert await _all(consumer) == []
            batch = await consumer.commit(step=1)
        assert [(s.group_id, s.reason) for s in batch.skipped] == [(group[0].group_id, "unreadable")]

    async def test_an_unknown_schema_id_stops_the_sink(self, bus: Bus) -> None:
        """The record isn't dead-lettered: the error names the id, groups before it still come, the position stays."""
        position = await bus.publish(scored("a", 0, 1))
        await bus.publish_raw(TOPIC, b"k", struct.pack(">bI", 0, 4242) + b"x", partition=position.partition)
        async with GroupConsumer(bus, "me") as consumer:
            await _next(consumer)
            with pytest.raises(UnknownSchemaIdError, match="4242"):
                await _next(consumer)
            batch = await consumer.commit(step=1)
        assert [(o.partition, o.offset) for o in batch.offsets] == [(position.partition, position.offset + 1)]

    async def test_large_groups_come_through_the_claim_check(self, bus: Bus) -> None:
        """A trajectory above the claim-check limit is read like any other."""
        big = scored("big", 0, 1, traces=[trace(prompt=range(100_000))])
        await _publish(bus, [big])
        async with GroupConsumer(bus, "me") as consumer:
            assert (await _next(consumer)).scored == (big,)

    async def test_waiting_can_be_cancelled(self, bus: Bus) -> None:
        """A trainer that waits with its own deadline loses nothing when it runs out."""
        async with GroupConsumer(bus, "me") as consumer:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(consumer), 0.02)
            await _publish(bus, whole("a", 2))
            assert (await _next(consumer)).group_id == ids.group_id("a")


def _sampled_by(name: str, version: str) -> list[ScoredTrajectory]:
    import dataclasses

    one = trace()
    turns = [dataclasses.replace(one.turns[0], version_spans=[VersionSpan(version=version, start=0, end=2)])]
    return whole(name, 1, traces=[dataclasses.replace(one, turns=turns)])


def _without_spec() -> ScoredTrajectory:
    import dataclasses

    return dataclasses.replace(scored("nospec", 0, 1), spec=None)


class TestInMemory(Behaviours):
    """On the in-memory bus."""

    @pytest.fixture
    def bus(self, memory_bus: MemoryBus) -> Bus:
        return memory_bus

    async def test_a_failed_commit_records_nothing(self, memory_bus: MemoryBus) -> None:
        """When the log can't be reached the position stays, and the same step can be committed again."""
        bus = MemoryBus(partitions=3, publish_deadline_s=0.05)
        async with bus:
            await _publish(bus, whole("a", 1))
            async with GroupConsumer(bus, "me") as consumer:
                await _next(consumer)
                before = consumer.state_dict()
                async with bus.outage():
                    with pytest.raises(BusUnavailableError):
                        await consumer.commit(step=1)
                    assert consumer.state_dict() == before
                batch = await consumer.commit(step=1)
        assert batch.groups == [ids.group_id("a")]

    async def test_reading_ahead_is_bounded(self, memory_bus: MemoryBus) -> None:
        """With prefetch 1, a group that nobody takes keeps the sink from reading the whole log into memory."""
        for n in range(20):
            await _publish(memory_bus, whole(f"g{n}", 1))
        async with GroupConsumer(memory_bus, "me", prefetch=1) as consumer:
            for taken in (1, 2):
                await _next(consumer)
                for _ in range(500):  # turns of the loop, enough for an unbounded reader to reach the end
                    await asyncio.sleep(0)
                assert sum(consumer.counts.values()) == taken + 1

    async def test_groups_can_be_committed_in_part(self, memory_bus: MemoryBus) -> None:
        """A named group is committed, the other stays out; one that isn't out is refused."""
        await _publish(memory_bus, [*whole("a", 1), *whole("b", 1)])
        async with GroupConsumer(memory_bus, "me") as consumer:
            a, b = await _next(consumer), await _next(consumer)
            assert (await consumer.commit(step=1, groups=[b])).groups == [b.group_id]
            with pytest.raises(KeyError, match="aren't out"):
                await consumer.commit(step=2, groups=[b])
            assert (await consumer.commit(step=2)).groups == [a.group_id]

    async def test_a_checkpoint_of_a_log_that_was_made_anew_is_refused(self, memory_bus: MemoryBus) -> None:
        """Offsets of another log mean nothing here."""
        await _publish(memory_bus, whole("a", 1))
        async with GroupConsumer(memory_bus, "me") as consumer:
            await _next(consumer)
            await consumer.commit(step=1)
            state = consumer.state_dict()
        for partitions, message in ((3, "made anew"), (5, "with 5")):
            async with MemoryBus(partitions=partitions) as fresh:
                again = GroupConsumer(fresh, "me")
                again.load_state_dict(state)
                with pytest.raises(CheckpointMismatchError, match=message):
                    await again.__aenter__()

    async def test_a_log_made_anew_is_known_by_its_records(self, memory_bus: MemoryBus) -> None:
        """Even when it has grown past the checkpoint's position: another record stands where the last one was read."""
        await _publish(memory_bus, whole("a", 1))
        async with GroupConsumer(memory_bus, "me") as consumer:
            await _next(consumer)
            await consumer.commit(step=1)
            state = consumer.state_dict()
        async with MemoryBus(partitions=3) as fresh:
            place = await fresh.partition_for(TOPIC, ids.group_id("a"))
            names = [f"g{n}" for n in range(20)]
            same = [n for n in names if await fresh.partition_for(TOPIC, ids.group_id(n)) == place]
            for name in same[:3]:
                await _publish(fresh, whole(name, 1))
            again = GroupConsumer(fresh, "me")
            again.load_state_dict(state)
            with pytest.raises(CheckpointMismatchError, match="another record at 0"):
                await again.__aenter__()
        same_log = GroupConsumer(memory_bus, "me", until_end=True)
        same_log.load_state_dict(state)
        async with same_log:
            assert await _all(same_log) == []

    async def test_retention_that_overtakes_a_reader_is_counted_too(
        self, memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A trainer that stood still for long: with "count" it goes on behind the gap, without repeating what it has."""
        place = await memory_bus.partition_for(TOPIC, ids.group_id("a"))
        names = [f"g{n}" for n in range(40)]
        same = ["a", *[n for n in names if await memory_bus.partition_for(TOPIC, ids.group_id(n)) == place][:4]]
        for name in same:
            await _publish(memory_bus, whole(name, 1))
        tail, begins = memory_bus.tail, [0]

        async def overtaken(topics, *, start="earliest", partitions=None, until_end=False):  # type: ignore[no-untyped-def]
            async for delivery in tail(topics, start=start, partitions=partitions, until_end=until_end):
                if topics == [TOPIC] and start == "earliest" and begins == [0] and delivery.offset == 2:
                    begins[0] = 3
                    raise BusRefusedError("retention has overtaken this reader")
                if topics != [TOPIC] or delivery.offset >= begins[0]:
                    yield delivery

        monkeypatch.setattr(memory_bus, "tail", overtaken)
        async with GroupConsumer(memory_bus, "me", until_end=True, on_expired="count") as lenient:
            assert await _all(lenient) == [ids.group_id(same[n]) for n in (0, 1, 3, 4)]
        assert lenient.counts == {"kept": 4, "expired": 1}
        begins[0] = 0
        async with GroupConsumer(memory_bus, "me", until_end=True) as strict:
            with pytest.raises(RecordsExpiredError, match="overtaken"):
                await _all(strict)

    async def test_what_retention_took_stops_the_sink_or_is_counted(
        self, memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Never a silent jump: RecordsExpiredError, or `expired` in the counts when the trainer said so."""
        first = await memory_bus.publish(scored("a", 0, 2))
        part = first.partition
        elsewhere = [n for n in "bcdefgh" if await memory_bus.partition_for(TOPIC, ids.group_id(n)) != part]
        async with GroupConsumer(memory_bus, "me") as consumer:
            await _publish(memory_bus, whole(elsewhere[0], 1))
            await _next(consumer)
            async with asyncio.timeout(DEADLINE_S):
                while consumer.open_groups < 1:  # until the other partition is read too
                    await asyncio.sleep(0)
            await consumer.commit(step=1)
            state = consumer.state_dict()
        await memory_bus.publish_raw(TOPIC, b"x", b"filler", partition=part)
        begin = (await memory_bus.end_offsets(TOPIC))[part] - 1
        tail = memory_bus.tail

        async def expiring(topics, *, start="earliest", partitions=None, until_end=False):  # type: ignore[no-untyped-def]
            if isinstance(start, dict) and start.get((TOPIC, part), begin) < begin:
                raise BusRefusedError(f"begins at {begin} by now")
            async for delivery in tail(topics, start=start, partitions=partitions, until_end=until_end):
                if delivery.partition != part or delivery.offset >= begin:
                    yield delivery

        monkeypatch.setattr(memory_bus, "tail", expiring)
        strict = GroupConsumer(memory_bus, "me", until_end=True)
        strict.load_state_dict(state)
        async with strict:
            with pytest.raises(RecordsExpiredError, match="on_expired='count'"):
                await _next(strict)
        lenient = GroupConsumer(memory_bus, "me", until_end=True, on_expired="count")
        lenient.load_state_dict(state)
        async with lenient:
            assert await _all(lenient) == []
        # The filler is unreadable; what was read before in the other partition isn't read again.
        assert lenient.counts == {"expired": begin - first.offset, "unreadable": 1}

    async def test_a_rank_and_partitions_contradict_each_other(self, memory_bus: MemoryBus) -> None:
        """Both say what is read."""
        with pytest.raises(ValueError, match="give one of them"):
            GroupConsumer(memory_bus, "me", rank=0, world_size=2, partitions=[0])
        with pytest.raises(ValueError, match="can't share 3 partitions"):
            await GroupConsumer(memory_bus, "me", rank=0, world_size=4).__aenter__()

    @pytest.mark.parametrize("trainer_id", ["", "a/b", "x" * 61, "sp ace"])
    def test_a_trainer_id_that_no_topic_can_carry_is_refused(self, memory_bus: MemoryBus, trainer_id: str) -> None:
        """It becomes part of a topic's name."""
        with pytest.raises(ValueError, match="trainer_id"):
            GroupConsumer(memory_bus, trainer_id)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"start": "newest"}, "start must be"),
            ({"start": -5}, "start must be"),
            ({"on_expired": "ignore"}, "on_expired"),
            ({"ttl_s": 0}, "ttl_s"),
            ({"max_lag": -1}, "max_lag"),
            ({"world_size": 4}, "no rank"),
            ({"policy_id": ""}, "empty"),
        ],
    )
    def test_arguments_that_cant_be_are_refused(
        self, memory_bus: MemoryBus, arguments: dict[str, Any], message: str
    ) -> None:
        """At once, and not by a flood of beats, by records passed over, or at the first group."""
        with pytest.raises(ValueError, match=message):
            GroupConsumer(memory_bus, "me", **arguments)

    async def test_a_timeout_that_stopped_the_reader_is_told(
        self, memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It isn't taken for the wait after which skips are reported, which would begin anew for ever."""

        async def late(*_: object) -> None:
            raise TimeoutError("a blob store didn't answer")

        monkeypatch.setattr(reader_module.ScoredReader, "_take", late)
        await _publish(memory_bus, whole("a", 1))
        async with GroupConsumer(memory_bus, "me") as consumer:
            with pytest.raises(TimeoutError, match="blob store"):
                await anext(consumer)

    async def test_a_group_that_is_named_twice_is_trained_once(self, memory_bus: MemoryBus) -> None:
        """The log says which groups a step trained, each once."""
        await _publish(memory_bus, whole("a", 1))
        async with GroupConsumer(memory_bus, "me") as consumer:
            group = await _next(consumer)
            batch = await consumer.commit(1, groups=[group, group.group_id])
        assert batch.groups == [group.group_id]

    async def test_what_is_being_committed_cant_be_skipped(self, memory_bus: MemoryBus) -> None:
        """The step would be on the log and in the checkpoint, and yet not count as committed here."""
        await _publish(memory_bus, whole("a", 1))
        async with GroupConsumer(memory_bus, "me") as consumer:
            group = await _next(consumer)

            async def save(_: dict[str, Any]) -> None:
                with pytest.raises(SinkStateError, match="being committed"):
                    consumer.skip(group, "too_long")

            await consumer.commit(1, save=save)
            assert (consumer.last_step, consumer.taken) == (1, ())

    async def test_a_commit_whose_saving_fails_records_nothing(self, memory_bus: MemoryBus) -> None:
        """Neither does one that is cancelled: the same step can be committed again, with the same groups."""
        await _publish(memory_bus, whole("a", 1))
        async with GroupConsumer(memory_bus, "me") as consumer:
            group = await _next(consumer)
            saving = asyncio.Event()

            async def fails(_: dict[str, Any]) -> None:
                raise OSError("disk full")

            async def hangs(_: dict[str, Any]) -> None:
                saving.set()
                await asyncio.Event().wait()

            with pytest.raises(OSError, match="disk full"):
                await consumer.commit(1, save=fails)
            committing = asyncio.create_task(consumer.commit(1, save=hangs))
            await asyncio.wait_for(saving.wait(), DEADLINE_S)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            assert (consumer.last_step, consumer.taken, await _batches(memory_bus)) == (0, (group.group_id,), [])
            assert (await consumer.commit(1)).groups == [group.group_id]

    async def test_side_calls_are_dropped_without_a_look_at_messages(self, memory_bus: MemoryBus) -> None:
        """So a foreign writer's broken text stops nobody who wants tokens: it raises when it is asked for."""
        record = scored("a", 0, 1, traces=[trace(weight=0.5), trace(index=1, branch="aux", weight=0.5)])
        encoded = codec.encode(record)
        text = json_text.dump(trace().messages).encode()
        await memory_bus.publish_raw(
            encoded.topic, encoded.key, encoded.value.replace(text, b"{" * len(text)), encoded.headers
        )
        async with GroupConsumer(memory_bus, "me", side_calls="drop") as consumer:
            (one,) = (await _next(consumer)).scored
        assert one.trajectory is not None
        assert [(t.index, t.weight) for t in one.trajectory.traces] == [(0, 1.0)]
        with pytest.raises(json_text.JsonTextError):
            _ = one.trajectory.traces[0].messages

    async def test_t73_what_was_trained_and_not_saved_comes_again(self, memory_bus: MemoryBus) -> None:
        """Eight groups were handed out and the trainer dies before its checkpoint: after the restart the same eight come, each once."""
        names = "abcdefgh"
        for name in names:
            await _publish(memory_bus, whole(name, 1))
        async with GroupConsumer(memory_bus, "me") as consumer:
            state = json.loads(json.dumps(consumer.state_dict()))
            first = [(await _next(consumer)).group_id for _ in names]
        again = GroupConsumer(memory_bus, "me", until_end=True)
        again.load_state_dict(state)
        async with again:
            assert await _all(again) == first
            assert len(set(first)) == len(names)

    async def test_t74_what_runs_at_a_checkpoint_ends_after_the_restore(self, memory_bus: MemoryBus) -> None:
        """Of eight groups five are trained, three still run, the longest at last: after the restore those three are trained, or skipped."""
        groups = {name: whole(name, 2) for name in "abcdefgh"}
        for sessions in groups.values():
            await _publish(memory_bus, sessions[:1])
        for name in "abcde":
            await _publish(memory_bus, groups[name][1:])
        async with GroupConsumer(memory_bus, "me") as consumer:
            trained = [(await _next(consumer)).group_id for _ in "abcde"]
            await consumer.commit(1)
            state = consumer.state_dict()
        for name in "hgf":
            await _publish(memory_bus, groups[name][1:])
        again = GroupConsumer(memory_bus, "me", until_end=True)
        again.load_state_dict(state)
        async with again:
            rest = [group async for group in again]
            again.skip(rest[0], "too_long")
            batch = await again.commit(2)
        ended = [*trained, *batch.groups, *(s.group_id for s in batch.skipped)]
        assert sorted(ended) == sorted(sessions[0].group_id for sessions in groups.values())
        assert [s.reason for s in batch.skipped] == ["too_long"]

    async def test_t77_a_trainer_that_pauses_holds_up_nobody(self, memory_bus: MemoryBus) -> None:
        """One takes a single group and stops there; the other reads all that there is, and what comes later."""
        for name in "abcdef":
            await _publish(memory_bus, whole(name, 1))
        async with GroupConsumer(memory_bus, "sft") as paused, GroupConsumer(memory_bus, "grpo") as other:
            first = await _next(paused)
            there = {(await _next(other)).group_id for _ in "abcdef"}
            await other.commit(1)
            await _publish(memory_bus, whole("g", 1))
            later = await _next(other)
            assert later.group_id not in there
            rest = {(await _next(paused)).group_id for _ in "bcdefg"}
        assert {first.group_id} | rest == there | {later.group_id}

    async def test_calls_at_the_wrong_time_say_so(self, memory_bus: MemoryBus) -> None:
        """Iterating before entering, entering twice, loading late, iterating after the end."""
        await _publish(memory_bus, whole("a", 1))
        consumer = GroupConsumer(memory_bus, "me")
        with pytest.raises(SinkStateError, match="async with"):
            await anext(consumer)
        async with consumer:
            group = await _next(consumer)
            with pytest.raises(ValueError, match="reason"):
                consumer.skip(group, "")
            with pytest.raises(SinkStateError, match="before the consumer is entered"):
                consumer.load_state_dict(consumer.state_dict())
            with pytest.raises(SinkStateError, match="in use"):
                await consumer.__aenter__()
        with pytest.raises(SinkStateError, match="closed"):
            await anext(consumer)


@pytest.mark.broker
class TestOnKafka(Behaviours):
    """On the real Kafka."""

    @pytest.fixture
    def bus(self, kafka_bus: Bus) -> Bus:
        return kafka_bus
