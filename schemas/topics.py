"""The topic catalogue, as data: creation, documentation, tests and dashboards derive from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DAY_MS: Final = 24 * 3600 * 1000
KEEP_FOREVER_MS: Final = -1

# Topics keyed by session have the same number of partitions, and so have the tables beside them.
DEFAULT_PARTITIONS: Final = 8


class TopicKind(StrEnum):
    """What a topic's records are."""

    COMMAND = "command"
    FACT = "fact"
    STATE = "state"
    BROADCAST = "broadcast"
    DEAD = "dead"
    CHANGELOG = "changelog"


class Cleanup(StrEnum):
    """The broker's cleanup.policy."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: `retention_ms` is -1 for ever; `records` are the wire names of the values that may stand on it."""

    name: str
    kind: TopicKind
    key: str
    records: tuple[str, ...]
    retention_ms: int
    cleanup: Cleanup = Cleanup.DELETE
    partitions: int = DEFAULT_PARTITIONS
    doc: str = ""

    @property
    def bears_log_time(self) -> bool:
        """Whether its records are stamped by the broker instead of by their producers.

        The orchestrator compares the times of what workers, commands and it itself tell: one clock for all of them, or a
        worker whose clock is an hour behind would seem to have run for an hour when it starts. So does a trainer's time to live.
        """
        return self.name.startswith(("rollout.", "trainer."))


def _catalogue(*topics: Topic) -> dict[str, Topic]:
    return {t.name: t for t in topics}


TOPICS: Final[dict[str, Topic]] = _catalogue(
    Topic("rollout.tasks", TopicKind.COMMAND, "task_id", ("task_request",), 7 * DAY_MS, doc="Tasks to run."),
    Topic("rollout.groups", TopicKind.FACT, "group_id", ("group_event",), 14 * DAY_MS, doc="What happens to groups."),
    Topic(
        "rollout.stage.init", TopicKind.COMMAND, "worker_id", ("stage_command",), 3 * DAY_MS, doc="Prepare a session."
    ),
    Topic("rollout.stage.run", TopicKind.COMMAND, "worker_id", ("stage_command",), 3 * DAY_MS, doc="Run a session."),
    Topic(
        "rollout.stage.postrun",
        TopicKind.COMMAND,
        "worker_id",
        ("stage_command",),
        3 * DAY_MS,
        doc="Grade and tear down.",
    ),
    Topic(
        "rollout.sessions", TopicKind.FACT, "session_id", ("session_event",), 14 * DAY_MS, doc="All facts of sessions."
    ),
    Topic(
        "rollout.state",
        TopicKind.STATE,
        "session_id",
        ("session_state",),
        KEEP_FOREVER_MS,
        Cleanup.COMPACT,
        doc="Where each session stands; a tombstone after its end and the retention.",
    ),
    Topic(
        "rollout.nodes",
        TopicKind.FACT,
        "node_id",
        ("heartbeat",),
        DAY_MS,
        Cleanup.COMPACT_DELETE,
        doc="Heartbeats of workers and proxies.",
    ),
    Topic(
        "rollout.control", TopicKind.BROADCAST, "target", ("control",), 7 * DAY_MS, doc="Cancel, drain, pause, seal."
    ),
    Topic(
        "capture.completions",
        TopicKind.FACT,
        "session_id",
        ("session_opened", "completion_record", "completion_delivery", "session_sealed"),
        7 * DAY_MS,
        doc="Every model call, token by token.",
    ),
    Topic(
        "capture.rejections", TopicKind.FACT, "reason", ("rejection",), 7 * DAY_MS, doc="Requests refused at the proxy."
    ),
    Topic(
        "rollout.callbacks",
        TopicKind.FACT,
        "task_id",
        ("callback",),
        14 * DAY_MS,
        doc="What callback URLs were told, and what waits for another try.",
    ),
    Topic("trajectory.built", TopicKind.FACT, "session_id", ("trajectory",), 14 * DAY_MS, doc="Merged traces."),
    Topic("reward.assigned", TopicKind.FACT, "session_id", ("reward",), 30 * DAY_MS, doc="Verdicts of graders."),
    Topic("trajectory.scored", TopicKind.FACT, "group_id", ("scored_trajectory",), 14 * DAY_MS, doc="For trainers."),
    Topic(
        "policy.timeline", TopicKind.FACT, "policy_id", ("policy_event",), KEEP_FOREVER_MS, doc="Versions and engines."
    ),
    Topic(
        "trainer.consumed",
        TopicKind.FACT,
        "trainer_id",
        ("trainer_registered", "batch_consumed"),
        30 * DAY_MS,
        doc="What trainers read.",
    ),
)

# The topics that hold a session's life: co-partitioned, so that one table row serves all of them.
BY_SESSION: Final = tuple(t.name for t in TOPICS.values() if t.key == "session_id")


def dead_letter_topic(source: Topic, component: str) -> Topic:
    """The dead-letter topic of one consumer of `source`: raw values, the source's keys, 30 days."""
    return Topic(
        f"{source.name}.{component}.dead",
        TopicKind.DEAD,
        source.key,
        (),
        30 * DAY_MS,
        partitions=source.partitions,
        doc=f"What {component} could not read from {source.name}: the raw bytes, with dead_* headers.",
    )


def changelog_topic(app_id: str, table: str, partitions: int = DEFAULT_PARTITIONS) -> Topic:
    """The changelog of a stream processor's table, by Faust's naming rule."""
    name = f"{app_id}-{table}-changelog"
    return Topic(name, TopicKind.CHANGELOG, "row", (), KEEP_FOREVER_MS, Cleanup.COMPACT, partitions, f"Table {table}.")


# Which of our own components reads which topics; each pair has a dead-letter topic of its own. A trainer's is named after
# it (`sink-<trainer_id>`) and made when it is first needed.
CONSUMERS: Final[dict[str, tuple[str, ...]]] = {
    "orchestrator": (
        "rollout.tasks",
        "rollout.groups",
        "rollout.sessions",
        "rollout.nodes",
        "rollout.control",
        "trajectory.built",
        "trajectory.scored",
        "trainer.consumed",
    ),
    "worker": (
        "rollout.stage.init",
        "rollout.stage.run",
        "rollout.stage.postrun",
        "rollout.sessions",
        "rollout.nodes",
        "rollout.control",
    ),
    "proxy": ("rollout.state", "rollout.control", "policy.timeline"),
    "assembler": ("capture.completions", "rollout.sessions"),
    "api": ("trajectory.scored", "rollout.callbacks"),
    "joiner": ("rollout.sessions", "trajectory.built", "reward.assigned"),
}


def dead_letter_topics() -> list[Topic]:
    """The dead-letter topics of our own components."""
    return [dead_letter_topic(TOPICS[t], component) for component, topics in CONSUMERS.items() for t in topics]
