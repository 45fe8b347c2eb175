"""How the Faust apps are made: the traps that must stay closed."""

from __future__ import annotations

import pytest

from bus import BusSettings, DeadLetters
from bus.memory import MemoryBus
from stream_processors import ProcessorSettings, changelog_topics
from stream_processors.acknowledge import DurableTable
from stream_processors.app import build_app, drop
from stream_processors.intake import Intake
from stream_processors.recovery import OrderedRecovery
from stream_processors.service import factories, run


@pytest.mark.parametrize("name", ["assembler", "joiner", "orchestrator"])
async def test_every_app_keeps_to_the_rules(memory_bus: MemoryBus, name: str) -> None:
    """No topics made behind our back, at least once, raw bytes, acknowledged by all replicas, no web server."""
    settings = BusSettings(topic_prefix="t.")
    processor = factories()[name](memory_bus, ProcessorSettings(bus=settings))
    intake = Intake(processor.handle, memory_bus.blobs, DeadLetters(memory_bus, name))
    app, _ = build_app(settings, processor, intake, 3)
    conf = app.conf
    assert (conf.id, conf.topic_allow_declare, conf.topic_disable_leader, conf.web_enabled) == (
        f"t.{name}",
        False,
        True,
        False,
    )
    assert (str(conf.processing_guarantee.value), conf.producer_acks, conf.stream_wait_empty) == (
        "at_least_once",
        -1,
        False,
    )
    (agent,) = app.agents.values()
    assert set(agent.get_topic_names()) == {f"t.{topic}" for topic in processor.topics}
    assert {t.name for t in app.tables.values()} == set(processor.table_names)
    assert isinstance(app.tables.recovery, OrderedRecovery)
    declared = {f"t.{topic.name}" for topic in changelog_topics()}
    for table in app.tables.values():
        assert table.changelog_topic_name in declared
        assert isinstance(table, DurableTable)
        assert table.acknowledger is not None
        assert (table.partitions, table.key_serializer, table.value_serializer) == (3, "raw", "raw")


def test_the_changelogs_are_compacted_and_partitioned_like_their_sources() -> None:
    """An admin creates them: Faust may not, and the broker doesn't."""
    topics = changelog_topics(5)
    assert len(topics) == 8
    assert {(str(t.cleanup), t.partitions, t.retention_ms) for t in topics} == {("compact", 5, -1)}


def test_dropping_what_is_not_there_writes_nothing() -> None:
    """Faust would write a tombstone for every deletion of a missing key."""
    table = {b"a": b"1"}
    drop(table, b"b")
    drop(table, b"a")
    assert table == {}


async def test_an_unknown_processor_is_named() -> None:
    """A typing error is told at once, before anything connects."""
    with pytest.raises(KeyError, match="nobody"):
        await run("nobody", ProcessorSettings())
