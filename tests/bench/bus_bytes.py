"""How many bytes stand on the bus per sampled token, compressed as they were sent, for sessions of many turns on a whole stack.

Counted in the broker's own segment files. An id and its logprob are eight bytes: that is the baseline. Heartbeats grow with time,
not with tokens, and are left out; so are Kafka's own topics.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.bench.context import Bench
from tests.bench.report import Metric, compared, plain

BYTES_PER_TOKEN = 8.0
"""int32 id + float32 logprob."""
NOT_COUNTED = ("__", "rollout.nodes")
SESSIONS = 4
INSTRUCTION = "Find out why the second test fails. words=80"


async def measure(bench: Bench) -> list[Metric]:
    """Sizes before and after the sessions, per token that they sampled."""
    stack = await bench.stack()
    before = topic_bytes(stack.kafka_dir)
    turns = bench.size(20, 4)
    bench.say(f"{SESSIONS} sessions of {turns} turns on a whole stack")
    tokens = await stack.run_sessions(INSTRUCTION, sessions=SESSIONS, turns=turns)
    grown = topic_bytes(stack.kafka_dir)
    grown.subtract(before)
    parts: Counter[str] = Counter()
    for topic, size in grown.items():
        parts[part_of(topic)] += size
    total = compared("bus_bytes_per_token", sum(parts.values()) / tokens, "B", BYTES_PER_TOKEN)
    rest = [compared(f"bus_bytes_per_token_{p}", n / tokens, "B", BYTES_PER_TOKEN) for p, n in sorted(parts.items())]
    return [total, *rest, plain("bus_bytes_tokens_sampled", tokens, "tokens")]


def part_of(topic: str) -> str:
    """What a topic's bytes are counted as."""
    if topic.endswith("-changelog"):
        return "changelogs"
    return {"capture": "capture", "trajectory": "trajectories"}.get(topic.partition(".")[0], "sessions")


def topic_bytes(kafka_dir: Path) -> Counter[str]:
    """Bytes of records by topic, over all nodes and partitions."""
    sizes: Counter[str] = Counter()
    for segment in kafka_dir.glob("node-*/data/*/*.log"):
        topic = segment.parent.name.rpartition("-")[0]
        if not topic.startswith(NOT_COUNTED):
            sizes[topic] += segment.stat().st_size
    return sizes
