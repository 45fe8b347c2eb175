"""How many captured calls per second become trajectories, beside a plain aiokafka loop that reads and publishes the same bytes.

Both are processes of their own and read the same records, which are on a real Kafka before they start; both are timed from their
first record to their last trajectory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from bus import Bus, BusSettings, connect
from schemas.records import CompletionRecord
from stream_processors import changelog_topics
from tests.bench.captured import SHAPES, Shape, session
from tests.bench.context import PARTITIONS, Bench
from tests.bench.errors import BenchError
from tests.bench.plain_loop import COPY_TOPIC
from tests.bench.processes import child
from tests.bench.report import Metric, compared

SESSIONS = {20: (120, 6), 200: (24, 3)}
"""By kilobytes: how many sessions of ten calls, in a full and in a quick run."""
DONE_WITHIN_S = 100.0
"""For one of the two, from its start to its last trajectory."""
WINDOW = 8
"""Sessions that are written at a time, so that their records stand among one another on the log."""


async def measure(bench: Bench) -> list[Metric]:
    """Both sizes."""
    metrics: list[Metric] = []
    for kilobytes, (full, quick) in SESSIONS.items():
        metrics += await _measure(bench, kilobytes, bench.size(full, quick))
    return metrics


async def _measure(bench: Bench, kilobytes: int, sessions: int) -> list[Metric]:
    shape = SHAPES[kilobytes]
    directory = bench.work_dir / f"assembler-{kilobytes}"
    async with bench.topics(f"assembler-{kilobytes}", (*changelog_topics(PARTITIONS), COPY_TOPIC)) as settings:
        facts, records = await _write(settings, shape, sessions)
        bench.say(f"assembler: {records} records of {kilobytes} KB, {facts} facts, {sessions} sessions")
        plain_argv = ["-m", "tests.bench.plain_loop", "--sessions", str(sessions)]
        base = await _run(directory, "plain-loop", plain_argv, settings)
        ours_argv = ["-m", "tests.bench.assembler_process", "--facts", str(facts), "--records", str(records)]
        ours = await _run(directory, "assembler", ours_argv, settings)
        await _require_trajectories(settings, 2 * sessions)
    name = f"assembler_{kilobytes}kb"
    rate, base_rate = (r["records"] / r["seconds"] for r in (ours, base))
    cpu, base_cpu = (1000 * r["cpu_s"] / r["records"] for r in (ours, base))
    return [
        compared(f"{name}_records_per_s", rate, "1/s", base_rate),
        compared(f"{name}_cpu_per_record", cpu, "ms", base_cpu),
    ]


async def _write(settings: BusSettings, shape: Shape, sessions: int) -> tuple[int, int]:
    """Put the sessions on the log; how many facts and how many completion records they are."""
    facts = records = 0

    async def write(bus: Bus, number: int) -> None:
        nonlocal facts, records
        for fact in session(shape, number):
            await bus.publish(fact)
            facts += 1
            records += isinstance(fact, CompletionRecord)

    async with connect(settings) as bus:
        for start in range(0, sessions, WINDOW):
            await asyncio.gather(*(write(bus, n) for n in range(start, min(sessions, start + WINDOW))))
    return facts, records


async def _run(directory: Path, name: str, argv: list[str], settings: BusSettings) -> dict[str, float]:
    """Run one of the two to its end; what it measured."""
    options = ["--ready", "{ready}", "--bus", settings.model_dump_json()]
    with child(name, [*argv, *options], directory) as started:
        return {name: float(value) for name, value in (await started.ready(DONE_WITHIN_S)).items()}


async def _require_trajectories(settings: BusSettings, count: int) -> None:
    """Raise BenchError unless both published one trajectory per session."""
    async with connect(settings) as bus:
        found = sum((await bus.end_offsets("trajectory.built")).values())
    if found != count:
        raise BenchError(f"{found} trajectories on the log where {count} were due")
