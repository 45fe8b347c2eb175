"""The topic catalogue."""

from __future__ import annotations

import re

import pytest

from schemas import registry
from schemas.records import RECORD_TYPES, Stage, StageCommand
from schemas.topics import (
    BY_SESSION,
    CONSUMERS,
    TOPICS,
    Cleanup,
    changelog_topic,
    dead_letter_topic,
    dead_letter_topics,
)


def test_every_record_on_the_catalogue_has_a_schema() -> None:
    """Whatever a topic lists is frozen, so that anybody can decode it."""
    for topic in TOPICS.values():
        assert topic.records, topic.name
        for name in topic.records:
            assert registry.newest(name).record == name


@pytest.mark.parametrize("cls", [c for c in RECORD_TYPES if c.TOPIC], ids=lambda c: c.NAME)
def test_every_record_stands_on_a_topic_that_lists_it(cls: type) -> None:
    """A record's own topic is in the catalogue and knows the record."""
    assert cls.NAME in TOPICS[cls.TOPIC].records  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("stage", "topic"),
    [
        (Stage.INIT, "rollout.stage.init"),
        (Stage.RUNNING, "rollout.stage.run"),
        (Stage.POSTRUN, "rollout.stage.postrun"),
    ],
)
def test_stage_commands_go_to_the_topic_of_their_stage(stage: Stage, topic: str) -> None:
    """The command's topic follows its stage and is in the catalogue."""
    assert StageCommand(stage=stage).topic == topic
    assert topic in TOPICS


def test_topics_keyed_by_session_are_co_partitioned() -> None:
    """One number of partitions for all of them, so that one table row serves all."""
    assert set(BY_SESSION) >= {"rollout.sessions", "capture.completions", "trajectory.built", "reward.assigned"}
    assert len({TOPICS[name].partitions for name in BY_SESSION}) == 1


def test_the_names_are_legal_for_kafka() -> None:
    """Letters, digits, dot, dash and underscore, with room for a prefix under Kafka's 249 characters."""
    for topic in [*TOPICS.values(), *dead_letter_topics()]:
        assert re.fullmatch(r"[a-z0-9._-]{1,120}", topic.name), topic.name


def test_the_keys_are_fields_of_the_records() -> None:
    """The catalogue's key names a field that every record of the topic has (session facts carry more than one id)."""
    for topic in TOPICS.values():
        for name in topic.records:
            assert hasattr(registry.record_class(name)(), topic.key), (topic.name, name)


def test_only_state_is_compacted() -> None:
    """A fact must not be overwritten by the next one of its key, but for heartbeats."""
    compacted = {t.name for t in TOPICS.values() if t.cleanup is not Cleanup.DELETE}
    assert compacted == {"rollout.state", "rollout.nodes"}


def test_consumers_read_topics_that_exist_and_each_has_a_dead_letter_topic() -> None:
    """Every pair of consumer and topic has its own dead letters with the source's partitions."""
    dead = {t.name: t for t in dead_letter_topics()}
    for component, names in CONSUMERS.items():
        for name in names:
            assert dead[f"{name}.{component}.dead"].partitions == TOPICS[name].partitions


def test_derived_topics() -> None:
    """A trainer's dead letters are named after it, a changelog after its application and table."""
    assert dead_letter_topic(TOPICS["trajectory.scored"], "sink-a").name == "trajectory.scored.sink-a.dead"
    changelog = changelog_topic("polynya-joiner", "sessions", 3)
    assert (changelog.name, changelog.partitions, changelog.cleanup) == (
        "polynya-joiner-sessions-changelog",
        3,
        Cleanup.COMPACT,
    )
