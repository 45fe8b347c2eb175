"""`python -m tests.bench [--only NAME] [--quick]`: run the measurements, print a table, write `.bench/latest.json`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import structlog
from rich.console import Console

from tests.bench.context import Bench
from tests.bench.processes import ROOT, raise_file_limit
from tests.bench.report import Metric, table, write

MEASUREMENTS = {
    "merge": 90.0,
    "lineage": 240.0,
    "proxy_latency": 150.0,
    "many_calls": 240.0,
    "assembler": 150.0,
    "bus_bytes": 300.0,
    "memory": 100.0,
    "staging": 300.0,
    "sink": 300.0,
    "session_cost": 300.0,
}
"""Each measurement's module and the seconds that it may take."""

WITHIN_S = 900.0
"""For all of them: what has no time left fails, and says so."""

RESULT = ROOT / ".bench" / "latest.json"


async def run(names: list[str], bench: Bench) -> tuple[list[Metric], list[str]]:
    """Run measurements one after another; the metrics of those that succeeded, and what went wrong with the others."""
    metrics: list[Metric] = []
    problems: list[str] = []
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    end = time.monotonic() + WITHIN_S
    try:
        for name in names:
            began = time.monotonic()
            limit_s = max(0.0, min(MEASUREMENTS[name], end - began))
            try:
                async with asyncio.timeout(limit_s):
                    metrics += await importlib.import_module(f"tests.bench.{name}").measure(bench)
            except TimeoutError:
                problems.append(f"{name}: not done within {limit_s:.0f} s")
                bench.say(f"FAILED {problems[-1]}")
            except Exception as error:  # a measurement's boundary: the others still count
                problems.append(f"{name}: {type(error).__name__}: {error}")
                bench.say(f"FAILED {problems[-1]}")
            else:
                bench.say(f"{name}: {time.monotonic() - began:.0f} s")
    finally:
        await bench.close()
    return metrics, problems


def main(argv: list[str] | None = None) -> int:
    """Run the bench; 1 when a measurement failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=list(MEASUREMENTS), metavar="NAME", help=", ".join(MEASUREMENTS)
    )
    parser.add_argument("--quick", action="store_true", help="small counts: shows that it works, not what it costs")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that succeeded, too")
    arguments = parser.parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    raise_file_limit()
    console = Console()
    if not console.is_terminal:
        console = Console(width=110)  # a log keeps the whole table
    work_dir = Path(tempfile.mkdtemp(prefix="polynya-bench-"))
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began:4.0f} s  {line}", style="dim", markup=False)

    bench = Bench(work_dir, quick=arguments.quick, say=say)
    problems = ["interrupted"]
    try:
        metrics, problems = asyncio.run(run(arguments.only or list(MEASUREMENTS), bench))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped", style="red")
        return 130
    finally:
        if problems or arguments.keep:
            console.print(f"logs: {work_dir}", style="dim", markup=False)
        else:
            shutil.rmtree(work_dir, ignore_errors=True)
    sizes = "quick sizes; compare nothing with a full run" if arguments.quick else "full sizes"
    cpus = os.cpu_count()
    console.print(table(metrics, f"{sizes}, {cpus} cores, {time.monotonic() - began:.0f} s"))
    if metrics:
        write(metrics, RESULT)
        console.print(f"written to {RESULT.relative_to(ROOT)}", style="dim", markup=False)
    for problem in problems:
        console.print(f"FAILED {problem}", style="red", markup=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
