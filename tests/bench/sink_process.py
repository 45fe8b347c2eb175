"""The readers that `sink` compares, each in a process of its own: our consumer, and a plain loop, both up to padded tensors."""

from __future__ import annotations

import argparse
import asyncio
import io
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import psutil
from aiokafka import AIOKafkaConsumer, TopicPartition

from bus import BusSettings, connect
from bus.group_source import close_consumer
from schemas import arrays, registry
from tests.bench.context import PARTITIONS
from tests.bench.processes import say_ready
from tests.bench.sink_records import GROUP_SIZE, POLICY
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


async def plain(settings: BusSettings, *, to_tensors: bool) -> dict[str, float]:
    """aiokafka, fastavro under the writer's own schema, and padded tensors of as many records as a group has, in whatever order.

    No objects, no groups, no filters, no credit, no versions, no position. Without `to_tensors` it unpacks the arrays and drops them.
    """
    consumer = AIOKafkaConsumer(**settings.reader_options())
    await consumer.start()
    clock = Clock()
    tokens = 0
    rows: list[dict[str, Any]] = []
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
                    rows += [_unpacked(trace) for trace in value["trajectory"]["traces"]]
                    if not to_tensors:
                        tokens += sum(len(row["prompt"]) + len(row["response"]) for row in rows)
                        rows = []
                    elif len(rows) >= GROUP_SIZE:
                        tokens += int(_padded(rows)["attention_mask"].sum())
                        rows = []
        if rows:
            tokens += int(_padded(rows)["attention_mask"].sum())
    finally:
        await close_consumer(consumer)
    return {"tokens": tokens, **clock.facts()}


def _unpacked(trace: Any) -> dict[str, Any]:
    return {
        "prompt": arrays.unpack_ids(trace["prompt_ids"]),
        "response": arrays.unpack_ids(trace["response_ids"]),
        "mask": arrays.unpack_mask(trace["loss_mask"]),
        "logprobs": arrays.unpack_logprobs(trace["logprobs"]),
    }


def _padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """As one writes it by hand: numpy's `concatenate`, torch's `pad_sequence`."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def column(of: Callable[[dict[str, Any]], Any]) -> torch.Tensor:
        return pad_sequence([torch.from_numpy(of(row)) for row in rows], batch_first=True)

    def behind_prompt(name: str) -> Callable[[dict[str, Any]], Any]:
        return lambda row: np.concatenate([np.zeros(len(row["prompt"]), np.float32), row[name]])

    ids = column(lambda row: np.concatenate([row["prompt"], row["response"]]).astype(np.int64))
    lengths = torch.tensor([len(row["prompt"]) + len(row["response"]) for row in rows])
    places = torch.arange(ids.shape[1]).expand(len(rows), -1)
    attention = (places < lengths[:, None]).long()
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": places * attention,
        "loss_mask": column(behind_prompt("mask")),
        "logprobs": column(behind_prompt("logprobs")),
    }


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
    parser.add_argument("--reader", choices=["sink", "plain", "decode", "flat"], required=True)
    parser.add_argument("--early", type=int, default=10_000)
    arguments = parser.parse_args()
    settings = BusSettings.model_validate_json(arguments.bus)
    if arguments.reader == "sink":
        with one_thread():
            facts = asyncio.run(sink(settings))
    elif arguments.reader in ("plain", "decode"):
        with one_thread():
            facts = asyncio.run(plain(settings, to_tensors=arguments.reader == "plain"))
    else:
        facts = asyncio.run(flat(settings, arguments.early))
    say_ready(arguments.ready, facts)


if __name__ == "__main__":
    main()
