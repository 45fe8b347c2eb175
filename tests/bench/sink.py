"""What the trainers' sink costs: from Kafka to padded tensors, beside a plain loop that does the same and one that only decodes; its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from aiokafka import AIOKafkaProducer

from bus import BusSettings
from schemas.records import ScoredTrajectory
from tests.bench.context import Bench
from tests.bench.errors import BenchError
from tests.bench.processes import child
from tests.bench.report import Metric, compared, plain
from tests.bench.sink_records import GROUP_SIZE, encoded, small, trajectory

MIB = 2**20
TOPIC = "trajectory.scored"
WITHIN_S = 280.0
TOGETHER = 500
ROUNDS = 2
"""Each reader runs so often, in turns; the better run counts: the other one shared the machine with something."""


async def measure(bench: Bench) -> list[Metric]:
    """Tokens per second and per CPU second (the baseline: a plain loop's), and resident memory after 10k and 100k trajectories."""
    count = bench.size(800, 240)
    async with bench.topics("sink") as settings:
        bench.say(f"{count} trajectories of ten turns")
        await publish(settings, trajectory, count)
        runs: dict[str, list[dict[str, float]]] = {"decode": [], "plain": [], "sink": []}
        for _ in range(ROUNDS):
            for reader, results in runs.items():
                results.append(await run(reader, settings, bench.work_dir))
        tokens = {reader: {result["tokens"] for result in results} for reader, results in runs.items()}
        if not tokens["decode"] == tokens["plain"] == tokens["sink"]:
            raise BenchError(f"the readers didn't read the same: {tokens}")
        metrics = [
            compared(name, _best(runs["sink"], per), unit, _best(runs["plain"], per))
            for name, per, unit in (
                ("sink_tokens_per_second", "seconds", "tokens/s"),
                ("sink_tokens_per_cpu_second", "cpu_s", "tokens/s"),
            )
        ]
        cpu = [_best(runs[reader], "cpu_s") for reader in ("sink", "decode")]
        metrics.append(compared("sink_tokens_per_cpu_second_of_decoding", cpu[0], "tokens/s", cpu[1]))
    async with bench.topics("sink-long") as settings:
        many, early = bench.size(100_000, 5_000), bench.size(10_000, 500)
        bench.say(f"{many} small trajectories")
        await publish(settings, small, many)
        long = await run("flat", settings, bench.work_dir, "--early", str(early))
    if long["trajectories"] != many:
        raise BenchError(f"{many} trajectories were published, {long['trajectories']} came")
    return [
        *metrics,
        plain("sink_trajectories", long["trajectories"], "trajectories"),
        compared("sink_memory", long["end_bytes"] / MIB, "MiB", long["early_bytes"] / MIB),
        plain("sink_memory_most", long["most_bytes"] / MIB, "MiB"),
    ]


async def publish(settings: BusSettings, make: Callable[[int, int], ScoredTrajectory], count: int) -> None:
    """So many trajectories, whole groups of them."""
    producer = AIOKafkaProducer(**settings.producer_options())
    await producer.start()
    try:
        topic = settings.physical(TOPIC)
        left = encoded(make, count, GROUP_SIZE)
        while records := list(islice(left, TOGETHER)):
            pending = [await producer.send(topic, value=r.value, key=r.key, headers=r.headers) for r in records]
            await asyncio.gather(*pending)
    finally:
        await producer.stop()


async def run(reader: str, settings: BusSettings, work_dir: Path, *more: str) -> dict[str, float]:
    """One reader in a process of its own, to its end."""
    argv = ["-m", "tests.bench.sink_process", "--ready", "{ready}", "--reader", reader]
    argv += ["--bus", settings.model_dump_json(), *more]
    with child(f"sink-{reader}", argv, work_dir) as process:
        return await process.ready(WITHIN_S)


def _best(results: list[dict[str, float]], per: str) -> float:
    return max(result["tokens"] / result[per] for result in results)
