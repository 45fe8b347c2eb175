"""The assembler as a process of its own, timed from its first record to its last trajectory."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from pathlib import Path

import structlog

from bus import BusSettings
from stream_processors import ProcessorService, ProcessorSettings
from stream_processors import run as run_processors
from tests.bench.errors import BenchError
from tests.bench.processes import say_ready

POLL_S = 0.005


async def assemble(settings: BusSettings, facts: int, records: int, result: Path) -> None:
    """Run until so many facts are handled; write how long the completion records among them took."""
    stop = asyncio.Event()
    watchers: list[asyncio.Task[None]] = []

    async def watch(service: ProcessorService) -> None:
        health = service.intake.health
        while not health.handled:
            await asyncio.sleep(POLL_S)
        began, cpu, head = time.perf_counter(), time.process_time(), health.handled
        while health.handled + health.buried < facts:
            await asyncio.sleep(POLL_S)
        if health.buried:
            raise BenchError(f"{health.buried} records were buried: {service.health()}")
        seconds = time.perf_counter() - began
        # What was handled before the first look isn't in the time, so it isn't in the count.
        share = (facts - head) / facts
        say_ready(result, {"records": records * share, "seconds": seconds, "cpu_s": time.process_time() - cpu})

    def on_start(services: list[ProcessorService]) -> None:
        watchers.extend(asyncio.create_task(watch(service)) for service in services)

    await run_processors("assembler", ProcessorSettings(bus=settings), stop=stop, on_start=on_start)


def main() -> None:
    """Run one assembler until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--facts", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    settings = BusSettings.model_validate_json(arguments.bus)
    asyncio.run(assemble(settings, arguments.facts, arguments.records, arguments.ready))


if __name__ == "__main__":
    main()
