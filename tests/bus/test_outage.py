"""The bus while Kafka is away: nothing acknowledged is lost, nothing comes out of order, and errors say what is wrong."""

from __future__ import annotations

import asyncio
import signal

import pytest

from bus import BusSettings, BusUnavailableError, connect
from bus.admin import TopicAdmin
from compose.kafka import KafkaCluster

TOPIC = "rollout.sessions"

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, kafka):
    """A broker of this module's own, to stop and kill. Asking for the shared one applies its rule for missing Java."""
    with KafkaCluster(tmp_path_factory.mktemp("outage")) as cluster:
        yield cluster


@pytest.fixture
async def bus(cluster, topic_prefix, tmp_path):
    """A bus on that broker, with every topic of one partition."""
    settings = BusSettings(
        bootstrap=cluster.bootstrap, topic_prefix=topic_prefix, blob_url=(tmp_path / "blobs").as_uri()
    )
    async with TopicAdmin(settings) as admin:
        await admin.apply(partitions=1)
        async with connect(settings) as bus:
            yield bus
        await admin.delete_all()


async def texts(bus):
    """What is on the topic, in order."""
    return [d.decode().error async for d in bus.tail([TOPIC], until_end=True)]


async def test_nothing_is_lost_while_the_broker_is_down(cluster, bus, event, collector, running):
    """Publishes that begin during an outage are acknowledged after it, once each and in order; a lane goes on by itself."""
    handler = collector()
    async with running(bus.lane("worker", [TOPIC], handler)):
        await bus.publish(event(kind="0"))
        await handler.wait_for(1)
        await asyncio.to_thread(cluster.stop)
        pending = [asyncio.create_task(bus.publish(event(kind=str(n)))) for n in range(1, 30)]
        with pytest.raises(BusUnavailableError, match="didn't acknowledge"):
            await bus.publish(event(session_id="s-2", kind="late"), deadline_s=0.3)
        assert not any(task.done() for task in pending)
        await asyncio.to_thread(cluster.start)
        async with asyncio.timeout(90):
            places = await asyncio.gather(*pending)
            while len({d.decode().error for d in handler.got}) < 31:
                await asyncio.sleep(0.05)
    assert [p.offset for p in places] == sorted({p.offset for p in places})
    seen = [text for text in await texts(bus) if text != "late"]
    assert seen == [str(n) for n in range(30)]
    assert (await texts(bus)).count("late") == 1


async def test_a_killed_broker_has_what_it_acknowledged(cluster, bus, event):
    """After SIGKILL in the middle of writing, every acknowledged record is there, once."""
    acknowledged = []

    async def write():
        for number in range(10_000):
            await bus.publish(event(kind=str(number)))
            acknowledged.append(str(number))

    writing = asyncio.create_task(write())
    async with asyncio.timeout(60):
        while len(acknowledged) < 50:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(cluster.kill)
    before = len(acknowledged)
    await asyncio.to_thread(cluster.start_node)
    async with asyncio.timeout(90):
        while len(acknowledged) < before + 20:
            await asyncio.sleep(0.01)
    writing.cancel()
    await asyncio.wait({writing})
    on_log = await texts(bus)
    assert on_log[: len(acknowledged)] == acknowledged
    assert len(on_log) == len(set(on_log))


async def test_a_frozen_broker_is_an_outage_too(cluster, bus, event):
    """A broker that hangs (connections stay open) delays publishes; they arrive when it goes on."""
    await bus.publish(event(kind="before"))
    cluster.suspend()
    try:
        with pytest.raises(BusUnavailableError):
            await bus.publish(event(kind="hung"), deadline_s=1)
    finally:
        cluster.resume()
    async with asyncio.timeout(60):
        await bus.publish(event(kind="after"))
    assert await texts(bus) == ["before", "hung", "after"]


async def test_connecting_to_nothing_says_so(tmp_path):
    """Without a broker `start` gives up after its deadline, and names the address and what to look at."""
    settings = BusSettings(bootstrap="127.0.0.1:1", connect_deadline_s=1.0, blob_url=tmp_path.as_uri())
    with pytest.raises(BusUnavailableError, match=r"127\.0\.0\.1:1 within 1 s: .*polynya doctor"):
        await connect(settings).start()


@pytest.mark.deep
@pytest.mark.timeout(300)
async def test_three_nodes_survive_the_loss_of_one(tmp_path, kafka, event):
    """With replication 3 a killed node costs nothing that was acknowledged, and writing goes on without it."""
    with KafkaCluster(tmp_path / "kafka", nodes=3) as cluster:
        settings = BusSettings(bootstrap=cluster.bootstrap, blob_url=tmp_path.as_uri())
        async with TopicAdmin(settings) as admin:
            await admin.apply(partitions=1)
        async with connect(settings) as bus:
            for number in range(50):
                await bus.publish(event(kind=str(number)))
            await asyncio.to_thread(cluster.kill, 2, signal.SIGKILL)
            async with asyncio.timeout(120):
                for number in range(50, 100):
                    await bus.publish(event(kind=str(number)))
            assert await texts(bus) == [str(n) for n in range(100)]
            await asyncio.to_thread(cluster.start_node, 2)
            assert sorted(cluster.pids) == [1, 2, 3]
    assert cluster.pids == {}
