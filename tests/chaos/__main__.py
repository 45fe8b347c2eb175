"""`make chaos`: one long storm. usage: python -m tests.chaos [--seed N] [--sessions N] [--minutes N] [--keep]."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tests.chaos.storm import Options, storm

T = TypeVar("T")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the plan and the load (drawn and printed when absent)"
    )
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument(
        "--minutes",
        type=float,
        default=25.0,
        help="of blows; what is open then has as long again to end (it takes less)",
    )
    parser.add_argument("--slots", type=int, default=6, help="sessions that a worker runs at once")
    parser.add_argument("--pi-share", type=float, default=0.1, help="of the groups")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a storm without violations")
    return parser.parse_args(arguments)


async def _until_told(work: Coroutine[Any, Any, T]) -> T:
    """Do it; a SIGTERM ends it in order, with every process stopped."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def main(arguments: list[str]) -> int:
    """Run one storm; 1 when something must not be."""
    chosen = parse(arguments)
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    root = Path(tempfile.mkdtemp(prefix=f"polynya-chaos-{seed}-"))
    options = Options(
        seed=seed,
        sessions=chosen.sessions,
        storm_s=chosen.minutes * 60,
        calm_s=chosen.minutes * 60,
        run_slots=chosen.slots,
        pi_share=chosen.pi_share,
    )
    print(
        f"chaos: seed {seed}, {chosen.sessions} sessions, blows for at most {chosen.minutes:g} minutes, in {root}",
        flush=True,
    )
    outcome = asyncio.run(_until_told(storm(options, root, lambda line: print(line, flush=True))))
    print(outcome.summary, flush=True)
    if outcome.verdict.is_clean and not chosen.keep:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if outcome.verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
