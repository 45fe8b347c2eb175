"""A proxy that a test may kill: prints its addresses, obeys single words on stdin (`hold`, `wait-recorded`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path

import structlog

from capture_proxy.service import CaptureProxy
from capture_proxy.settings import EngineSettings, ProxySettings
from tests.capture_proxy.fakes import CharRenderer, HeldBus


async def main(spool: str, engine: str) -> None:
    """Runs until it is killed."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    held = threading.Event()

    def fsync(fd: int) -> None:
        if held.is_set():
            threading.Event().wait(60.0)
        os.fdatasync(fd)

    async with HeldBus(partitions=3) as bus:
        settings = ProxySettings(
            proxy_id="proxy-victim",
            spool_dir=Path(spool),
            model_dir=Path(spool),
            engines=(EngineSettings(url=engine),),
            admin_key="admin-key",
            ack_wait_ms=1,
            adopt_every_s=60,
        )
        proxy = CaptureProxy(settings, bus, CharRenderer(), fsync=fsync)
        await proxy.start()
        say({"data_address": proxy.data_address, "admin_address": proxy.admin_address})
        while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if command == "hold":
                bus.acks.clear()
                held.set()
            elif command == "wait-recorded":
                while not proxy.recorder.counts.get("finished"):
                    await asyncio.sleep(0.01)
            say("ok")


def say(what: object) -> None:
    """One line for the test."""
    sys.stdout.write((what if isinstance(what, str) else json.dumps(what)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
