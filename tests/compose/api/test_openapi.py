"""The API keeps what its own OpenAPI document promises, whatever is sent to it: a schemathesis run with every check."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from bus.memory import MemoryBus
from compose.api.app import create_app
from compose.api.service import document, listen, url_of
from tests.compose.api import facts
from tests.compose.api.conftest import KEY
from tests.compose.api.conftest import settings as api_settings

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
EXAMPLES = 4
"""Generated requests per operation, beside those that schemathesis derives from the document (some thousand)."""


@dataclass
class Served:
    """An API in a thread of its own, with one task that has lived and one that waits."""

    url: str = ""

    async def run(self, ready: threading.Event, stop: threading.Event) -> None:
        """Serve until told to stop."""
        chosen = api_settings(rate_per_s=1e6, rate_burst=10**6, max_body_bytes=1_000_000, longest_wait_s=0.05)
        sock = listen(chosen)
        async with MemoryBus(partitions=3) as bus:
            await facts.lived(bus, "known")
            await facts.registered(bus, "waiting", 2)
            await bus.publish(facts.beat())
            server = uvicorn.Server(uvicorn.Config(create_app(bus, chosen), log_config=None, access_log=False))
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            self.url = url_of(chosen, sock)
            ready.set()
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await serving


@pytest.fixture
def api() -> Iterator[Served]:
    """A served API."""
    served, ready, stop = Served(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(served.run(ready, stop)), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield served
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_a_schemathesis_run_finds_nothing(api: Served, tmp_path: Path) -> None:
    """Examples, coverage of the document's limits, generated requests and sequences of them; no fault, no undocumented answer."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
            *("run", f"{api.url}/openapi.json", "--checks", "all", "--max-examples", str(EXAMPLES)),
            *("--header", f"Authorization: Bearer {KEY}", "--no-color", "--generation-database", "none"),
        ],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
        cwd=HERE.parents[2],
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.compose.api.schemathesis_hooks",
            "PYTHONPATH": str(HERE.parents[2]),
        },
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-4000:]
    assert "Test cases" in run.stdout


def test_every_error_has_the_one_shape() -> None:
    """The document has no trace of the framework's own error shapes, and every operation names its errors."""
    text = document()
    assert "HTTPValidationError" not in text
    assert text.count('"application/problem+json"') > 50
