"""Runs the processors in a process of their own, for tests that kill it: `python process.py SETTINGS_JSON NAME…`."""

from __future__ import annotations

import asyncio
import logging
import sys

from stream_processors import ProcessorService, ProcessorSettings, run


async def main(settings: ProcessorSettings, names: list[str]) -> None:
    """Run until SIGTERM; say READY when all are up."""
    watchers: list[asyncio.Task[None]] = []

    async def announce(services: list[ProcessorService]) -> None:
        await asyncio.gather(*(s.ready.wait() for s in services))
        print("READY", flush=True)

    await run(names, settings, on_start=lambda services: watchers.append(asyncio.create_task(announce(services))))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(ProcessorSettings.model_validate_json(sys.argv[1]), sys.argv[2:]))
