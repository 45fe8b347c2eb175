"""What stands between the catalogue and a cluster: pure, from what is declared and what exists to one line per topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from bus.settings import MAX_FETCH_BYTES
from schemas.topics import BY_SESSION, TOPICS, Topic, dead_letter_topics


class Action(StrEnum):
    """What stands between the catalogue and the cluster, for one topic."""

    NONE = "none"
    CREATE = "create"
    ALTER = "alter"
    """Settings differ; `apply` sets them."""
    GROW = "grow"
    """A topic without keys gets more partitions."""
    REFUSE = "refuse"
    """Only a new topic and a drain can bring it about."""
    UNDECLARED = "undeclared"
    """On the cluster under our prefix, in nobody's catalogue; left alone."""


@dataclass(frozen=True, slots=True)
class Change:
    """One topic's line of a plan."""

    topic: str
    """The catalogue's name."""
    action: Action
    details: tuple[str, ...] = ()
    """For people: `retention.ms: 3600000 → 604800000`."""


@dataclass(frozen=True, slots=True)
class Existing:
    """A topic as the cluster has it; `own_settings` were made on the topic itself."""

    partitions: int
    replication: int
    settings: dict[str, str]
    own_settings: dict[str, str]


def declared_topics(extra: Iterable[Topic] = ()) -> list[Topic]:
    """The catalogue, its dead letters, and what callers add: changelogs of stream processors, a trainer's dead letters."""
    declared = {topic.name: topic for topic in [*TOPICS.values(), *dead_letter_topics(), *extra]}
    if len({declared[name].partitions for name in BY_SESSION}) > 1:
        raise ValueError("topics keyed by session need the same number of partitions")
    return list(declared.values())


def topic_settings(topic: Topic, replication: int) -> dict[str, str]:
    """The settings that a topic of ours has on a cluster with this replication."""
    return {
        "cleanup.policy": topic.cleanup.value,
        "retention.ms": str(topic.retention_ms),
        # Time decides, never size: a long session's records must outlive it.
        "retention.bytes": "-1",
        "min.insync.replicas": str(max(1, replication - 1)),
        "max.message.bytes": str(MAX_FETCH_BYTES),
        "message.timestamp.type": "LogAppendTime" if topic.bears_log_time else "CreateTime",
    }


def compare(topic: Topic, existing: Existing | None, replication: int) -> Change:
    """A topic's line of the plan."""
    if existing is None:
        return Change(topic.name, Action.CREATE, (f"{topic.partitions} partitions, replication {replication}",))
    wanted = topic_settings(topic, existing.replication or replication)
    wrong = differing(wanted, existing.settings)
    details = [f"{name}: {existing.settings.get(name)} → {wanted[name]}" for name in wrong]
    action = Action.ALTER if details else Action.NONE
    if existing.partitions != topic.partitions:
        details.append(f"partitions: {existing.partitions} → {topic.partitions}")
        action = Action.REFUSE if topic.key or topic.partitions < existing.partitions else Action.GROW
    if existing.replication < replication:
        # Moving replicas is the operator's tool's work; it doesn't stand in the way of the rest.
        details.append(f"replication: {existing.replication}, the cluster could hold {replication}")
    return Change(topic.name, action, tuple(details))


def differing(wanted: dict[str, str], found: dict[str, str]) -> list[str]:
    """The names of settings that aren't what we want."""
    return [name for name, value in wanted.items() if _normal(found.get(name)) != _normal(value)]


def _normal(value: str | None) -> str | None:
    """Lists in Kafka's settings have no order."""
    return ",".join(sorted(value.split(","))) if value is not None else None
