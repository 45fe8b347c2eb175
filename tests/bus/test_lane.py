"""What a lane promises, on both buses: each behaviour is written once and run in memory and on Kafka."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
import structlog
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from bus import DeadLetter, PoisonError
from bus.errors import BusUnavailableError
from schemas import registry
from schemas.codec import encode
from schemas.records import SessionEvent, Trajectory

TOPIC = "rollout.sessions"
POISON = b"\x00\x00\x00\x00\x06this is no avro body \xff\xff\xff\xff"
UNKNOWN_ID = 54_321


async def dead_letters(bus, topic=TOPIC, component="worker"):
    """Everything that `component` has set aside of `topic`."""
    return [d async for d in bus.tail([f"{topic}.{component}.dead"], until_end=True)]


async def key_elsewhere(bus, partition):
    """A key that isn't on this partition."""
    for number in range(100):
        if await bus.partition_for(TOPIC, f"s-{number}") != partition:
            return f"s-{number}"
    raise AssertionError("all keys on one partition")


class LaneBehaviour:
    """The behaviours; subclasses bring `bus`."""

    async def test_every_record_is_handled_in_the_order_of_its_key(self, bus, collector, running, event):
        """A partition is handled in order, so each session's facts come as they were published."""
        for number in range(40):
            await bus.publish(event(f"s-{number % 4}", str(number)))
        handler = collector()
        async with running(bus.lane("worker", [TOPIC], handler)):
            got = await handler.wait_for(40)
        by_session = {}
        for delivery in got:
            record = delivery.decode()
            by_session.setdefault(record.session_id, []).append(int(record.error))
        assert by_session == {f"s-{k}": list(range(k, 40, 4)) for k in range(4)}

    async def test_a_group_goes_on_where_it_stopped(self, bus, collector, running, event):
        """What a lane has handled when it stops isn't delivered to its successor; what came later is."""
        await bus.publish(event(kind="first"))
        handler = collector()
        async with running(bus.lane("worker", [TOPIC], handler)):
            await handler.wait_for(1)
        await bus.publish(event(kind="second"))
        successor = collector()
        async with running(bus.lane("worker", [TOPIC], successor)):
            await successor.wait_for(1)
        assert (handler.kinds, successor.kinds) == (["first"], ["second"])

    async def test_groups_do_not_share_records(self, bus, collector, running, event):
        """Each group gets every record."""
        await bus.publish(event())
        one, other = collector(), collector()
        async with running(bus.lane("worker", [TOPIC], one)), running(bus.lane("proxy", [TOPIC], other)):
            await one.wait_for(1)
            await other.wait_for(1)
        assert one.got[0].position == other.got[0].position

    async def test_a_record_in_hand_when_the_lane_dies_comes_again(self, bus, collector, running, event):
        """An offset is committed after its record was handled, never before."""
        await bus.publish(event(kind="handled"))
        await bus.publish(event(kind="in hand"))
        reached = asyncio.Event()

        async def hang(delivery):
            if delivery.decode().error == "in hand":
                reached.set()
                await asyncio.Event().wait()

        lane = bus.lane("worker", [TOPIC], collector(hang))
        lane._drain_s = 0.05
        async with running(lane):
            await asyncio.wait_for(reached.wait(), 20)
        successor = collector()
        async with running(bus.lane("worker", [TOPIC], successor)):
            await successor.wait_for(1)
        assert successor.kinds == ["in hand"]

    async def test_a_retriable_error_is_tried_again_in_place(self, bus, collector, running, event, until):
        """The same record comes again until it succeeds, nothing overtakes it, health names it meanwhile."""
        failures, may_succeed = [], asyncio.Event()

        async def fail(delivery):
            if delivery.decode().error == "hard" and not may_succeed.is_set():
                failures.append(delivery.offset)
                raise BusUnavailableError("not now")

        for kind in ("hard", "next"):
            await bus.publish(event(kind=kind))
        handler = collector(fail)
        lane = bus.lane("worker", [TOPIC], handler)
        lane._handling._first_retry_s = 0.01
        async with running(lane):
            await until(lambda: len(failures) >= 3)
            health = lane.health()
            may_succeed.set()
            await handler.wait_for(2)
            await until(lambda: lane.health().is_healthy)
        assert not health.is_healthy
        assert (health.problems[0].topic, health.problems[0].reason) == (TOPIC, "retrying")
        assert handler.kinds == ["hard", "next"]
        assert await dead_letters(bus) == []

    async def test_poison_is_set_aside_whole_and_the_lane_goes_on(self, bus, collector, running, event):
        """A value that doesn't decode lands in the dead-letter topic: its bytes, key and headers, and why and where."""
        own = (("ce_id", b"abc"), ("x-trace", b"1"))
        position = await bus.publish_raw(TOPIC, b"s-1", POISON, own)
        await bus.publish(event(kind="after"))
        handler = collector()
        async with running(bus.lane("worker", [TOPIC], handler)):
            await handler.wait_for(1)
        (dead,) = await dead_letters(bus)
        letter = DeadLetter.read(dead)
        assert handler.kinds == ["after"]
        assert (dead.key, dead.value, dead.header_list[:2]) == (b"s-1", POISON, own)
        assert (letter.source, letter.component, letter.reason) == (position, "worker", "malformed")
        assert letter.error_class == "MalformedRecordError"
        assert abs(letter.dead_at - dead.timestamp_ms) < 60_000

    async def test_unframed_bytes_are_poison_too(self, bus, collector, running, event):
        """Something that isn't Confluent framing at all is set aside like any poison."""
        await bus.publish_raw(TOPIC, b"s-1", b'{"json": true}')
        await bus.publish(event(kind="after"))
        handler = collector()
        async with running(bus.lane("worker", [TOPIC], handler)):
            await handler.wait_for(1)
        assert [d.value for d in await dead_letters(bus)] == [b'{"json": true}']

    async def test_a_handler_that_fails_for_good_buries_the_record(self, bus, collector, running, event):
        """An error that isn't retriable makes a dead letter, under the handler's own reason where it gives one."""

        async def refuse(delivery):
            kind = delivery.decode().error
            if kind == "conflict":
                raise PoisonError("id_conflict", "same id, other digest")
            if kind == "bug":
                raise ZeroDivisionError("oops")

        for kind in ("conflict", "bug", "fine"):
            await bus.publish(event(kind=kind))
        handler = collector(refuse)
        lane = bus.lane("worker", [TOPIC], handler)
        async with running(lane):
            await handler.wait_for(1)
        letters = [DeadLetter.read(d) for d in await dead_letters(bus)]
        assert [(x.reason, x.error_class) for x in letters] == [
            ("id_conflict", "PoisonError"),
            ("handler_error", "ZeroDivisionError"),
        ]
        assert handler.kinds == ["fine"]
        assert (lane.health().handled, lane.health().buried) == (1, 2)

    async def test_an_unknown_schema_stops_its_partition_only(self, bus, collector, running, until, learn):
        """No poison: its partition waits, health names id and place, others go on; once the id is known, it goes on."""
        mine = await bus.partition_for(TOPIC, "s-1")
        other = await key_elsewhere(bus, mine)
        newer = encode(SessionEvent(session_id="s-1", error="from the future")).value
        newer = newer[:1] + UNKNOWN_ID.to_bytes(4, "big") + newer[5:]
        position = await bus.publish_raw(TOPIC, b"s-1", newer)
        await bus.publish(SessionEvent(session_id="s-1", error="behind it"))
        await bus.publish(SessionEvent(session_id=other, error="elsewhere"))
        handler = collector()
        lane = bus.lane("worker", [TOPIC], handler)
        lane._handling._recheck_s = 0.05
        async with running(lane):
            await handler.wait_for(1)
            await until(lambda: lane.health().problems)
            health = lane.health()
            assert handler.kinds == ["elsewhere"]
            learn()
            await handler.wait_for(3)
            await until(lambda: lane.health().is_healthy)
        (problem,) = health.problems
        assert not health.is_healthy
        assert (problem.reason, problem.schema_id) == ("unknown_schema", UNKNOWN_ID)
        assert (problem.topic, problem.partition, problem.offset) == (TOPIC, position.partition, position.offset)
        assert str(UNKNOWN_ID) in problem.text
        assert f"{TOPIC}[{position.partition}]@{position.offset}" in problem.text
        assert handler.kinds[1:] == ["from the future", "behind it"]
        assert await dead_letters(bus) == []

    async def test_a_lane_stopped_at_an_unknown_schema_leaves_it_to_its_successor(
        self, bus, collector, running, event, until
    ):
        """The offset isn't committed, so a newer process finds the record."""
        value = encode(event()).value
        await bus.publish_raw(TOPIC, b"s-1", value[:1] + UNKNOWN_ID.to_bytes(4, "big") + value[5:])
        lane = bus.lane("worker", [TOPIC], collector())
        async with running(lane):
            await until(lambda: lane.health().problems)
        raw = collector()
        async with running(bus.lane("worker", [TOPIC], raw, decode=False)):
            await raw.wait_for(1)
        assert raw.got[0].value[1:5] == UNKNOWN_ID.to_bytes(4, "big")

    async def test_without_dead_letters_poison_stops_its_partition(self, bus, collector, running, until):
        """A lane that buries nothing says so in its health and doesn't commit."""
        await bus.publish_raw(TOPIC, b"s-1", POISON)
        lane = bus.lane("worker", [TOPIC], collector(), dead_letter=False)
        async with running(lane):
            await until(lambda: lane.health().problems)
            assert lane.health().problems[0].reason == "stopped"
        assert await dead_letters(bus) == []

    async def test_large_values_arrive_whole(self, bus, collector, running):
        """A record above 256 KiB travels as a reference on the log and is the record again at the handler."""
        record = Trajectory(session_id="s-1", group_id="g", trajectory_id="x" * 400_000)
        await bus.publish(record)
        handler = collector()
        async with running(bus.lane("worker", [record.TOPIC], handler)):
            (got,) = await handler.wait_for(1)
        assert got.decode() == record
        assert got.headers["ce_id"] == record.event_id.encode()
        assert b"claim_check" in [name.encode() for name, _ in got.header_list]

    async def test_tombstones_reach_the_handler_undecoded(self, bus, collector, running):
        """A deleted key is a delivery without a record."""
        await bus.publish_raw("rollout.state", b"s-1", None)
        handler = collector()
        async with running(bus.lane("proxy", ["rollout.state"], handler)):
            (got,) = await handler.wait_for(1)
        assert (got.key, got.is_tombstone, got.value, got.record) == (b"s-1", True, b"", None)

    async def test_a_slow_partition_does_not_hold_up_the_others(self, bus, collector, running, event):
        """Partitions are handled beside each other."""
        mine = await bus.partition_for(TOPIC, "slow")
        other = await key_elsewhere(bus, mine)
        release = asyncio.Event()

        async def wait(delivery):
            if delivery.key == b"slow":
                await release.wait()

        await bus.publish(event("slow", "slow"))
        await bus.publish(event(other, "quick"))
        handler = collector(wait)
        async with running(bus.lane("worker", [TOPIC], handler)):
            await handler.wait_for(1)
            release.set()
            await handler.wait_for(2)
        assert handler.kinds == ["quick", "slow"]

    async def test_members_share_partitions_and_hand_them_over(self, bus, collector, running, event, until):
        """A second member takes its share, a leaving one gives its own back; every record is handled, each key in order."""
        one, other = collector(), collector()
        published = 0

        async def publish(count):
            nonlocal published
            for _ in range(count):
                await bus.publish(event(f"s-{published % 7}", str(published)))
                published += 1

        first, second = bus.lane("worker", [TOPIC], one), bus.lane("worker", [TOPIC], other)
        async with running(first):
            await publish(30)
            async with running(second):
                await until(lambda: len(first.health().assigned) + len(second.health().assigned) == 3)
                await until(lambda: first.health().assigned and second.health().assigned)
                assert set(first.health().assigned).isdisjoint(second.health().assigned)
                await publish(60)
                await until(lambda: len({d.position for d in one.got + other.got}) == 90)
            await until(lambda: len(first.health().assigned) == 3)
            await publish(20)
            await until(lambda: len({d.position for d in one.got + other.got}) == 110)
        assert other.got
        for member in (one, other):
            offsets = {}
            for delivery in member.got:
                offsets.setdefault(delivery.partition, []).append(delivery.offset)
            assert all(seen == sorted(seen) for seen in offsets.values())

    async def test_lag_is_what_is_left_to_handle(self, bus, collector, running, event, until):
        """Health counts the records behind the end of each partition."""
        for number in range(5):
            await bus.publish(event("s-1", str(number)))
        gate = asyncio.Event()

        async def wait(delivery):
            if delivery.decode().error == "2":
                await gate.wait()

        handler = collector(wait)
        lane = bus.lane("worker", [TOPIC], handler)
        async with running(lane):
            await handler.wait_for(2)
            partition = (TOPIC, await bus.partition_for(TOPIC, "s-1"))
            await until(lambda: lane.health().lag.get(partition) == 3)
            gate.set()
            await until(lambda: lane.health().lag.get(partition) == 0)
        assert len(handler.got) == 5

    async def test_a_lane_runs_once(self, bus, collector, running):
        """A lane that has ended says so instead of doing nothing."""
        lane = bus.lane("worker", [TOPIC], collector())
        async with running(lane):
            pass
        with pytest.raises(RuntimeError, match="make a new one"):
            await lane.run()


@pytest.fixture
def learn(tmp_path, monkeypatch):
    """Give the registry the unknown id, when called: a copy of its folder in which it names a session event."""

    def teach():
        grown = tmp_path / "avro"
        shutil.copytree(registry.AVRO_DIR, grown)
        entries = json.loads((grown / "registry.json").read_text())
        entries.append({"id": UNKNOWN_ID, "record": SessionEvent.NAME, "version": 1})
        (grown / "registry.json").write_text(json.dumps(entries))
        monkeypatch.setattr(registry, "AVRO_DIR", grown)

    return teach


@pytest.fixture(autouse=True)
def _fresh_registry():
    """The registry's cache forgets what a test taught it."""
    yield
    registry.frozen_schemas.cache_clear()


class TestLaneInMemory(LaneBehaviour):
    """On the twin."""

    @pytest.fixture
    def bus(self, memory_bus):
        return memory_bus

    async def test_a_lost_blob_makes_a_dead_letter_with_the_reference(self, bus, collector, running, event, tmp_path):
        """A claim check whose blob is gone is buried as the reference that it is, under its reason."""
        record = Trajectory(session_id="s-1", trajectory_id="x" * 400_000)
        await bus.publish(record)
        shutil.rmtree(tmp_path / "blobs")
        lane = bus.lane("joiner", [record.TOPIC], collector())
        async with running(lane):
            async with asyncio.timeout(20):
                while not (dead := bus.records(f"{record.TOPIC}.joiner.dead")):
                    await asyncio.sleep(0.02)
        assert DeadLetter.read(dead[0]).reason == "blob_missing"
        assert dead[0].value == bus.records(record.TOPIC)[0].value

    async def test_an_outage_is_waited_out(self, bus, collector, running, event):
        """While nothing answers a publish waits; afterwards everything arrives."""
        handler = collector()
        async with running(bus.lane("worker", [TOPIC], handler)):
            async with bus.outage():
                pending = asyncio.create_task(bus.publish(event()))
                with pytest.raises(BusUnavailableError, match="down"):
                    await bus.publish(event(), deadline_s=0.01)
                assert not pending.done()
            await pending
            await handler.wait_for(1)


@pytest.mark.broker
class TestLaneOnKafka(LaneBehaviour):
    """On the broker."""

    @pytest.fixture
    def bus(self, kafka_bus):
        return kafka_bus

    async def test_what_retention_took_from_a_group_is_said_aloud(self, bus, collector, running, event, kafka):
        """A group that comes back too late goes on with what is left, and logs the range that it lost."""
        for number in range(6):
            await bus.publish(event("s-1", str(number)))
        first = collector()
        async with running(bus.lane("worker", [TOPIC], first)):
            await first.wait_for(6)
        for number in range(6, 10):
            await bus.publish(event("s-1", str(number)))
        place = TopicPartition(bus.settings.physical(TOPIC), await bus.partition_for(TOPIC, "s-1"))
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        await admin.delete_records({place: RecordsToDelete(8)})
        await admin.close()
        late = collector()
        with structlog.testing.capture_logs() as logs:
            async with running(bus.lane("worker", [TOPIC], late)):
                await late.wait_for(2)
        assert late.kinds == ["8", "9"]
        (lost,) = [line for line in logs if line["event"] == "records.expired"]
        assert (lost["from_offset"], lost["to_offset"], lost["count"]) == (6, 8, 2)
