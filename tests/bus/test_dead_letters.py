"""What a dead letter keeps."""

from __future__ import annotations

import pytest

from bus.dead_letters import DeadLetter, DeadLetters, dead_letter_headers, dead_letter_name
from bus.deliveries import Delivery, Position
from schemas.topics import TOPICS, dead_letter_topic, dead_letter_topics


def delivery(**changes):
    """A record that is about to be set aside."""
    fields = {
        "topic": "rollout.tasks",
        "partition": 2,
        "offset": 17,
        "timestamp_ms": 5,
        "key": b"t-1",
        "value": b"\x01raw",
    }
    return Delivery(**(fields | changes))


def test_the_name_is_the_catalogues():
    """The bus and the catalogue agree on the names of dead-letter topics."""
    assert dead_letter_name("rollout.tasks", "worker") == dead_letter_topic(TOPICS["rollout.tasks"], "worker").name


def test_headers_say_why_where_and_when():
    """The record's own headers come first, unchanged and in order; ours follow."""
    own = (("a", b"1"), ("b", b"\xff"), ("a", b"2"))
    headers = dead_letter_headers(delivery(header_list=own), "proxy", ValueError("ü" * 5000))
    read = DeadLetter.read(delivery(header_list=headers))
    assert headers[:3] == own
    assert read.source == Position("rollout.tasks", 2, 17)
    assert (read.component, read.reason, read.error_class) == ("proxy", "handler_error", "ValueError")
    assert len(read.error) == 2000


def test_a_second_death_replaces_the_first():
    """A dead letter that is replayed and dies again tells of its last death only."""
    first = dead_letter_headers(delivery(), "proxy", ValueError("one"))
    second = dead_letter_headers(delivery(header_list=first), "worker", KeyError("two"), reason="id_conflict")
    names = [name for name, _ in second]
    assert len(names) == len(set(names))
    assert DeadLetter.read(delivery(header_list=second)).reason == "id_conflict"


async def test_any_component_can_bury(memory_bus):
    """Consumers that aren't lanes set records aside the same way."""
    await DeadLetters(memory_bus, "assembler").bury(
        delivery(topic="capture.completions"), ValueError("no"), reason="id_conflict"
    )
    (dead,) = memory_bus.records("capture.completions.assembler.dead")
    assert (dead.key, dead.value) == (b"t-1", b"\x01raw")
    assert DeadLetter.read(dead).reason == "id_conflict"


async def test_a_tombstone_stays_one(memory_bus):
    """A tombstone that a handler refuses is set aside as a tombstone."""
    await DeadLetters(memory_bus, "proxy").bury(
        delivery(topic="rollout.state", value=b"", is_tombstone=True), ValueError("no")
    )
    assert memory_bus.records("rollout.state.proxy.dead")[0].is_tombstone


def test_ordinary_records_are_no_dead_letters():
    """Reading the headers of something else fails loudly."""
    with pytest.raises(KeyError):
        DeadLetter.read(delivery())


async def test_every_declared_dead_letter_topic_exists_in_memory(memory_bus):
    """The twin has the dead-letter topics of all our consumers."""
    for topic in dead_letter_topics():
        assert await memory_bus.end_offsets(topic.name) == dict.fromkeys(range(3), 0)
