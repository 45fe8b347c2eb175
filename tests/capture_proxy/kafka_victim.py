"""A proxy on the real Kafka that a test may kill: prints its addresses, then runs until it is killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import structlog

from bus import BusSettings, connect
from capture_proxy.service import CaptureProxy
from capture_proxy.settings import EngineSettings, ProxySettings
from tests.capture_proxy.fakes import CharRenderer


async def main(spool: str, engine: str, bus: str) -> None:
    """Runs until it is killed."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    async with connect(BusSettings.model_validate_json(bus)) as connected:
        settings = ProxySettings(
            proxy_id="proxy-victim",
            spool_dir=Path(spool),
            model_dir=Path(spool),
            engines=(EngineSettings(url=engine),),
            admin_key="admin-key",
        )
        proxy = CaptureProxy(settings, connected, CharRenderer())
        await proxy.start()
        sys.stdout.write(json.dumps({"data": proxy.data_address, "admin": proxy.admin_address}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
