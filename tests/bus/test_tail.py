"""What readers without a group see, on both buses."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from bus.errors import TopicMissingError
from schemas.records import BlobReference, Trajectory

TOPIC = "rollout.sessions"


class TailBehaviour:
    """The behaviours; subclasses bring `bus`."""

    async def test_until_end_reads_what_was_there_and_stops(self, bus, event):
        """A bounded reader sees every record that was published before, and ends."""
        for number in range(10):
            await bus.publish(event(f"s-{number}", str(number)))
        got = [d.decode().error async for d in bus.tail([TOPIC], until_end=True)]
        assert sorted(got, key=int) == [str(n) for n in range(10)]

    async def test_an_empty_topic_ends_at_once(self, bus):
        """Nothing there is an end, too."""
        assert [d async for d in bus.tail([TOPIC, "rollout.tasks"], until_end=True)] == []

    async def test_latest_sees_only_what_comes(self, bus, event):
        """A reader from the end misses the past and gets the next record."""
        await bus.publish(event(kind="before"))
        ends = await bus.end_offsets(TOPIC)
        async with aclosing(bus.tail([TOPIC], start="latest")) as tail:
            following = asyncio.create_task(anext(tail))
            got = None
            async with asyncio.timeout(20):
                while not following.done():  # the reader looks up the end some time after it was made
                    await bus.publish(event(kind="after"))
                    await asyncio.wait({following}, timeout=0.1)
                got = await following
        assert got.decode().error == "after"
        assert got.offset >= ends[got.partition]

    async def test_a_time_is_a_start(self, bus, event):
        """A reader that begins at a time sees the records from then on."""
        await bus.publish(event(kind="early"))
        await asyncio.sleep(0.02)  # lets the clock move: the broker's resolution is a millisecond
        await bus.publish(event(kind="late"))
        everything = [d async for d in bus.tail([TOPIC], until_end=True)]
        since = everything[-1].timestamp_ms
        got = [d.decode().error async for d in bus.tail([TOPIC], start=since, until_end=True)]
        assert got == ["late"]
        assert [d async for d in bus.tail([TOPIC], start=since + 60_000, until_end=True)] == []

    async def test_offsets_are_a_start(self, bus, event):
        """A reader goes on from the next offsets that it remembers."""
        places = [await bus.publish(event("s-1", str(n))) for n in range(4)]
        start = {(TOPIC, places[2].partition): places[2].offset}
        got = [d.decode().error async for d in bus.tail([TOPIC], start=start, until_end=True)]
        assert got == ["2", "3"]

    async def test_chosen_partitions_only(self, bus, event):
        """A reader may take the partition that its own key maps to."""
        for number in range(12):
            await bus.publish(event(f"s-{number}", str(number)))
        mine = await bus.partition_for(TOPIC, "s-0")
        got = [d async for d in bus.tail([TOPIC], partitions=[mine], until_end=True)]
        assert {d.partition for d in got} == {mine}
        assert "s-0" in {d.decode().session_id for d in got}
        assert len(got) < 12

    async def test_partition_for_is_where_the_record_goes(self, bus, event):
        """The bus knows beforehand where a key goes."""
        for number in range(8):
            position = await bus.publish(event(f"s-{number}"))
            assert await bus.partition_for(TOPIC, f"s-{number}") == position.partition

    async def test_end_offsets_count_the_records(self, bus, event):
        """The end offset of a partition is its next record's."""
        before = await bus.end_offsets(TOPIC)
        position = await bus.publish(event("s-1"))
        after = await bus.end_offsets(TOPIC)
        assert before == dict.fromkeys(range(3), 0)
        assert after == before | {position.partition: position.offset + 1}

    async def test_several_topics_at_once(self, bus, event):
        """One reader follows several topics and says where each record is from."""
        await bus.publish(event())
        await bus.publish_raw("rollout.state", b"s-1", None)
        got = {d.topic: d.is_tombstone async for d in bus.tail([TOPIC, "rollout.state"], until_end=True)}
        assert got == {TOPIC: False, "rollout.state": True}

    async def test_large_values_come_resolved(self, bus):
        """The claim check is invisible to readers."""
        record = Trajectory(session_id="s-1", trajectory_id="y" * 300_000)
        await bus.publish(record)
        (got,) = [d async for d in bus.tail([record.TOPIC], until_end=True)]
        assert got.decode() == record

    async def test_unresolved_a_large_value_stays_a_reference(self, bus):
        """Who needs headers and places only doesn't fetch blobs."""
        await bus.publish(Trajectory(session_id="s-1", trajectory_id="y" * 300_000))
        (got,) = [d async for d in bus.tail(["trajectory.built"], until_end=True, resolved=False)]
        assert isinstance(got.decode(), BlobReference)
        assert got.headers["session_id"] == b"s-1"

    async def test_records_are_read_again_at_their_places(self, bus, event):
        """Places in any order, near and far apart, with repetitions; one that isn't there is left out; large values come whole."""
        places = [await bus.publish(event("s-1", str(number))) for number in range(100)]
        partition = places[0].partition
        wanted = [places[n].offset for n in (99, 3, 4, 3, 50)]
        got = await bus.at(TOPIC, partition, [*wanted, places[99].offset + 10])
        assert [d.decode().error for d in got] == ["3", "4", "50", "99"]
        record = Trajectory(session_id="s-1", trajectory_id="y" * 300_000)
        place = await bus.publish(record)
        (whole,) = await bus.at(record.TOPIC, place.partition, [place.offset])
        assert whole.decode() == record
        assert await bus.at(TOPIC, partition, []) == []

    async def test_a_topic_that_is_not_there_is_named(self, bus):
        """Reading or writing an undeclared topic says how to declare it."""
        with pytest.raises(TopicMissingError, match="polynya topics apply"):
            await bus.publish_raw("no.such.topic", b"k", b"v")
        with pytest.raises(TopicMissingError, match=r"no\.such\.topic"):
            _ = [d async for d in bus.tail(["no.such.topic"], until_end=True)]


class TestTailInMemory(TailBehaviour):
    """On the twin."""

    @pytest.fixture
    def bus(self, memory_bus):
        return memory_bus


@pytest.mark.broker
class TestTailOnKafka(TailBehaviour):
    """On the broker."""

    @pytest.fixture
    def bus(self, kafka_bus):
        return kafka_bus

    async def test_offsets_that_retention_took_are_an_error(self, bus, event, kafka):
        """A reader whose place is gone is told so, with the range, instead of jumping over it."""
        from aiokafka import TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

        from bus import BusRefusedError

        places = [await bus.publish(event("s-1", str(n))) for n in range(5)]
        partition = places[0].partition
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        await admin.delete_records({TopicPartition(bus.settings.physical(TOPIC), partition): RecordsToDelete(3)})
        await admin.close()
        with pytest.raises(BusRefusedError, match=r"\[1, 3\)"):
            _ = [d async for d in bus.tail([TOPIC], start={(TOPIC, partition): 1}, until_end=True)]
        got = [d.decode().error async for d in bus.tail([TOPIC], until_end=True)]
        assert got == ["3", "4"]
