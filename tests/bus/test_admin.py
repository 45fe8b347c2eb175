"""The cluster's topics against the catalogue."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from bus.admin import TopicAdmin
from bus.errors import TopicsRefusedError
from bus.plan import Action, Existing, compare, declared_topics, topic_settings
from bus.settings import BusSettings
from schemas.topics import TOPICS, Cleanup, Topic, TopicKind, changelog_topic, dead_letter_topics

SESSIONS = TOPICS["rollout.sessions"]
KEYLESS = Topic("audit.log", TopicKind.FACT, "", (), 1000, partitions=2)


def existing(topic=SESSIONS, partitions=None, **settings):
    """A topic as it is on a cluster of one node."""
    wanted = topic_settings(topic, 1) | settings
    return Existing(partitions=partitions or topic.partitions, replication=1, settings=wanted, own_settings=wanted)


def test_everything_is_declared_once():
    """Catalogue, dead letters and what a caller adds."""
    changelog = changelog_topic("assembler", "segments")
    names = [t.name for t in declared_topics([changelog])]
    assert len(names) == len(set(names))
    assert set(names) == {*TOPICS, *(t.name for t in dead_letter_topics()), changelog.name}


@pytest.mark.parametrize(("replication", "in_sync"), [(1, "1"), (2, "1"), (3, "2")])
def test_one_replica_may_be_missing(replication, in_sync):
    """Acknowledged means on all replicas but one, where there are several."""
    assert topic_settings(SESSIONS, replication)["min.insync.replicas"] == in_sync


def test_settings_follow_the_catalogue():
    """Retention in time only, cleanup as declared."""
    state = topic_settings(TOPICS["rollout.state"], 1)
    assert (state["cleanup.policy"], state["retention.ms"], state["retention.bytes"]) == ("compact", "-1", "-1")
    assert topic_settings(TOPICS["rollout.nodes"], 1)["cleanup.policy"] == Cleanup.COMPACT_DELETE.value


@pytest.mark.parametrize(
    ("topic", "clock"),
    [
        ("rollout.sessions", "LogAppendTime"),
        ("rollout.stage.run", "LogAppendTime"),
        ("capture.completions", "CreateTime"),
    ],
)
def test_whose_clock_stamps_records(topic, clock):
    """The times that the orchestrator compares are all the broker's; a call's record keeps its own."""
    assert topic_settings(TOPICS[topic], 1)["message.timestamp.type"] == clock


@pytest.mark.parametrize(
    ("topic", "found", "action"),
    [
        (SESSIONS, None, Action.CREATE),
        (SESSIONS, existing(), Action.NONE),
        (SESSIONS, existing(**{"retention.ms": "1"}), Action.ALTER),
        (SESSIONS, existing(partitions=9), Action.REFUSE),
        (SESSIONS, existing(partitions=7), Action.REFUSE),
        (KEYLESS, existing(KEYLESS, partitions=1), Action.GROW),
        (KEYLESS, existing(KEYLESS, partitions=3), Action.REFUSE),
    ],
)
def test_what_is_to_be_done(topic, found, action):
    """A keyed topic's partitions never change; one without keys may grow; nothing shrinks."""
    assert compare(topic, found, 1).action is action


def test_the_order_of_policies_does_not_matter():
    """Kafka may list `delete,compact`, we `compact,delete`."""
    nodes = TOPICS["rollout.nodes"]
    assert compare(nodes, existing(nodes, **{"cleanup.policy": "delete,compact"}), 1).action is Action.NONE


def test_too_few_replicas_are_reported():
    """A cluster that has grown since: a line for the operator, nothing that apply would do."""
    change = compare(SESSIONS, existing(), 3)
    assert change.action is Action.NONE
    assert any("replication: 1" in line for line in change.details)


async def test_without_a_prefix_nothing_is_deleted_wholesale():
    """Deleting needs a prefix: the cluster may be shared."""
    with pytest.raises(TopicsRefusedError, match="no topic prefix"):
        await TopicAdmin(BusSettings()).delete_all()


@pytest.mark.broker
class TestOnKafka:
    """Against the broker."""

    @pytest.fixture
    async def admin(self, kafka, topic_prefix):
        async with TopicAdmin(BusSettings(bootstrap=kafka, topic_prefix=topic_prefix)) as admin:
            yield admin
            await admin.delete_all()

    async def test_apply_makes_the_cluster_what_the_catalogue_says(self, admin):
        """Plan names everything, apply makes it, afterwards nothing differs and apply does nothing."""
        extra = [changelog_topic("assembler", "segments", 2)]
        planned = await admin.plan(extra, partitions=2)
        applied = await admin.apply(extra, partitions=2)
        assert {c.action for c in planned} == {Action.CREATE}
        assert {c.topic for c in applied} == {t.name for t in declared_topics(extra)}
        assert await admin.diff(extra, partitions=2) == []
        assert await admin.apply(extra, partitions=2) == []

    async def test_a_producer_whose_clock_is_wrong_does_not_date_facts(self, admin, kafka, topic_prefix):
        """A worker's fact is read with the broker's time, whatever the worker's clock says."""
        await admin.apply(partitions=1)
        place = TopicPartition(topic_prefix + "rollout.sessions", 0)
        producer = AIOKafkaProducer(bootstrap_servers=kafka)
        await producer.start()
        await producer.send_and_wait(place.topic, b"x", partition=0, timestamp_ms=1000)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([place])
        record = await asyncio.wait_for(consumer.getone(), 20)
        await consumer.stop()
        assert abs(record.timestamp - time.time() * 1000) < 60_000

    async def test_other_partitions_are_refused_and_nothing_is_touched(self, admin):
        """With one refusal in the plan, apply creates nothing either, and says what to do."""
        await admin.apply(partitions=1)
        extra = [changelog_topic("assembler", "segments", 2)]
        with pytest.raises(TopicsRefusedError, match=r"rollout\.sessions: partitions: 1 → 2"):
            await admin.apply(extra, partitions=2)
        assert [c.action for c in await admin.diff(extra, partitions=1)] == [Action.CREATE]

    async def test_changed_settings_are_set_back_and_others_kept(self, admin, kafka, topic_prefix):
        """What the catalogue says is restored; what an operator set besides stays."""
        await admin.apply(partitions=1)
        name = topic_prefix + "rollout.tasks"
        client = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await client.start()
        changed = {"retention.ms": "1234567", "segment.ms": "7654321"}
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=changed)])
        async with asyncio.timeout(20):
            while not (diff := {c.topic: c for c in await admin.diff(partitions=1)}):
                await asyncio.sleep(0.05)
        applied = await admin.apply(partitions=1)
        (answer,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        await client.close()
        settings = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert list(diff) == ["rollout.tasks"]
        assert "retention.ms: 1234567 → 604800000" in diff["rollout.tasks"].details
        assert [c.action for c in applied] == [Action.ALTER]
        assert (settings["retention.ms"], settings["segment.ms"]) == ("604800000", "7654321")

    async def test_strangers_under_the_prefix_are_reported_and_left(self, admin):
        """A topic that nobody declares any more is named, not deleted."""
        old = changelog_topic("old-app", "rows", 1)
        await admin.apply([old], partitions=1)
        undeclared = [c for c in await admin.diff(partitions=1) if c.action is Action.UNDECLARED]
        assert [c.topic for c in undeclared] == [old.name]
        assert await admin.apply(partitions=1) == []
        assert old.name in {c.topic for c in await admin.plan(partitions=1)}

    async def test_two_processes_may_apply_at_once(self, kafka, admin, topic_prefix):
        """Both succeed; the topics exist once."""
        async with TopicAdmin(BusSettings(bootstrap=kafka, topic_prefix=topic_prefix)) as other:
            await asyncio.gather(admin.apply(partitions=1), other.apply(partitions=1))
        assert await admin.diff(partitions=1) == []

    async def test_a_topic_without_keys_grows(self, admin):
        """More partitions where no key can move."""
        await admin.apply([Topic("audit.log", TopicKind.FACT, "", (), 1000, partitions=1)])
        applied = await admin.apply([Topic("audit.log", TopicKind.FACT, "", (), 1000, partitions=3)])
        assert [(c.topic, c.action) for c in applied] == [("audit.log", Action.GROW)]

    async def test_one_process_can_bring_its_own_topics(self, admin):
        """`ensure` makes what is missing of the given topics, and nothing of the catalogue."""
        mine = changelog_topic("assembler", "segments", 2)
        assert [c.topic for c in await admin.ensure([mine])] == [mine.name]
        assert await admin.ensure([mine]) == []
        assert {c.topic for c in await admin.plan([mine]) if c.action is Action.NONE} == {mine.name}
