"""A trainer that trains nothing: reads whole groups, makes arrays of them as any would, and commits every few."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

import structlog

from bus import BusSettings, connect
from schemas.arrays import unpack_mask
from tests.bench.processes import say_ready
from trainer_sink import GroupConsumer

GROUPS_PER_STEP = 8


async def train(settings: BusSettings, ready: Path) -> None:
    """Read and commit until cancelled; the ready file says that its position is fixed."""
    async with connect(settings) as bus, GroupConsumer(bus, "bench-trainer", start="latest") as groups:
        say_ready(ready, {})
        step = count = tokens = 0
        async for group in groups:
            for session in group.scored:
                traces = session.trajectory.traces if session.trajectory is not None else []
                tokens += sum(int(unpack_mask(trace.loss_mask).sum()) for trace in traces)
            count += 1
            if count % GROUPS_PER_STEP == 0:
                step += 1
                await groups.commit(step, details={"tokens": tokens})


def main() -> None:
    """Run one until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--bus", required=True)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(train(BusSettings.model_validate_json(arguments.bus), arguments.ready))


if __name__ == "__main__":
    main()
