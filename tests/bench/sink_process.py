"""The readers that `sink` compares, each in a process of its own: our consumer up to padded tensors, and a plain loop that decodes."""

from __future__ import annotations

import argparse
import asyncio
import io
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition

from bus import BusSettings, connect
from bus.group_source import close_consumer
from schemas import arrays, registry
from tests.bench.context import PARTITIONS
from tests.bench.processes import say_ready
from tests.bench.sink_records import POLICY
from trainer_sink import GroupConsumer
from trainer_sink.sequences import sequences_of

TOPIC = "trajectory.scored"
COMMIT_EVERY = 32
"""Groups per step of a trainer."""


class Clock:
    """Wall and CPU seconds, from the first record on."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def begin(self) -> None:
        """Now, unless it runs."""
        if not self._wall:
            self._wall, self._cpu = time.perf_counter(), time.process_time()

    def facts(self) -> dict[str, float]:
        """What has passed."""
        return {"seconds": time.perf_counter() - self._wall, "cpu_s": time.process_time() - self._cpu}


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: what is measured is a pipeline, not a matrix."""
    import torch

    torch.set_num_threads(1)
    yield


async def sink(settings: BusSettings) -> dict[str, float]:
    """Whole groups, their sequences with their credit, padded torch tensors; a commit every so many groups."""
    from trainer_sink.adapters.torch_tensors import padded

    tokens = step = held = 0
    clock = Clock()
    async with connect(settings) as bus:
        consumer = GroupConsumer(bus, "bench", policy_id=POLICY, until_end=True, prefetch=8)
        async with consumer:
            async for group in consumer:
                clock.begin()
                batch = padded(sequences_of(group), 0)
                tokens += int(batch["attention_mask"].sum())
                held += 1
                if held == COMMIT_EVERY:
                    step, held = step + 1, 0
                    await consumer.commit(step)
            facts = clock.facts()
    return {"tokens": tokens, **facts}


async def plain(settings: BusSettings) -> dict[str, float]:
    """aiokafka, fastavro under the writer's own schema, arrays as they stand: no objects, no groups, no tensors, no position."""
    consumer = AIOKafkaConsumer(**settings.reader_options())
    await consumer.start()
    clock = Clock()
    tokens = 0
    schema = fastavro.parse_schema(registry.newest("scored_trajectory").schema)
    try:
        topic = settings.physical(TOPIC)
        places = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        left = sum(ends.values())
        while left:
            for records in (await consumer.getmany(timeout_ms=250, max_records=500)).values():
                clock.begin()
                for record in records:
                    left -= 1
                    value: Any = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), schema)
                    for trace in value["trajectory"]["traces"]:
                        prompt, response = (
                            arrays.unpack_ids(trace["prompt_ids"]),
                            arrays.unpack_ids(trace["response_ids"]),
                        )
                        arrays.unpack_logprobs(trace["logprobs"])
                        arrays.unpack_mask(trace["loss_mask"])
                        tokens += len(prompt) + len(response)
    finally:
        await close_consumer(consumer)
    return {"tokens": tokens, **clock.facts()}


async def flat(settings: BusSettings, early: int) -> dict[str, float]:
    """A long run over small trajectories: resident bytes after `early` of them, and at the end."""
    process = psutil.Process()
    trajectories = step = held = 0
    at_early = 0
    async with connect(settings) as bus, GroupConsumer(bus, "bench-long", policy_id=POLICY, until_end=True) as consumer:
        async for group in consumer:
            trajectories += group.size
            held += 1
            if held == COMMIT_EVERY:
                step, held = step + 1, 0
                await consumer.commit(step)
            if not at_early and trajectories >= early:
                at_early = process.memory_info().rss
        at_end = process.memory_info().rss
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"trajectories": trajectories, "early_bytes": at_early, "end_bytes": at_end, "most_bytes": most}


def main() -> None:
    """Run one reader to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--reader", choices=["sink", "plain", "flat"], required=True)
    parser.add_argument("--early", type=int, default=10_000)
    arguments = parser.parse_args()
    settings = BusSettings.model_validate_json(arguments.bus)
    if arguments.reader == "sink":
        with one_thread():
            facts = asyncio.run(sink(settings))
    elif arguments.reader == "plain":
        facts = asyncio.run(plain(settings))
    else:
        facts = asyncio.run(flat(settings, arguments.early))
    say_ready(arguments.ready, facts)


if __name__ == "__main__":
    main()
