"""One engine for the whole conformance suite: a given one, or our CPU engine as its own process.

POLYNYA_CONFORMANCE_URL       base URL of a running engine that speaks SGLang's protocol (random weights are fine)
POLYNYA_CONFORMANCE_WEIGHTS   two checkpoint directories that it can load, separated by a colon: the running one first
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

START_LIMIT_S = 240.0  # importing torch on a machine with other work


@dataclass(frozen=True)
class Target:
    """The engine under test and two checkpoints that it can load."""

    url: str
    weights: tuple[str, str]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The engine that the suite talks to."""
    url = os.environ.get("POLYNYA_CONFORMANCE_URL")
    if url:
        first, _, second = os.environ.get("POLYNYA_CONFORMANCE_WEIGHTS", "").partition(":")
        assert second, "POLYNYA_CONFORMANCE_WEIGHTS must name two checkpoint directories, separated by a colon"
        yield Target(url.rstrip("/"), (first, second))
        return
    from compose.cpu_engine.tiny_model import ensure_tiny_model

    weights = (str(ensure_tiny_model()), str(ensure_tiny_model(seed=1)))
    directory = tmp_path_factory.mktemp("engine")
    port_file = directory / "port"
    command = [sys.executable, "-m", "compose.cpu_engine", "--model", weights[0], "--port-file", str(port_file)]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Target(f"http://127.0.0.1:{_port(process, port_file, directory / 'log')}", weights)
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _port(process: subprocess.Popen[bytes], port_file: Path, log: Path) -> int:
    deadline = time.monotonic() + START_LIMIT_S
    while not port_file.exists():
        assert process.poll() is None, f"the engine ended at once:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"the engine isn't up after {START_LIMIT_S:.0f} s:\n{log.read_text()}"
        time.sleep(0.1)
    return int(port_file.read_text())


class Engine:
    """What the tests say to the engine; each method is one exchange."""

    def __init__(
        self, url: str, session: aiohttp.ClientSession, *, is_incremental: bool, weights: tuple[str, str]
    ) -> None:
        self._url = url
        self._session = session
        self.is_incremental = is_incremental
        self.weights = weights

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        """Status and decoded body (text where it isn't JSON)."""
        async with self._session.post(self._url + path, json=body) as reply:
            return reply.status, await _decoded(reply)

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded body."""
        async with self._session.get(self._url + path) as reply:
            return reply.status, await _decoded(reply)

    async def generate(self, **body: Any) -> Any:
        """A reply that must come."""
        status, reply = await self.post("/generate", **body)
        assert status == 200, reply
        return reply

    async def events(self, **body: Any) -> AsyncIterator[Any]:
        """The events of a stream, decoded; the stream must end with `[DONE]`."""
        async with self._session.post(self._url + "/generate", json={**body, "stream": True}) as reply:
            assert reply.status == 200, await reply.text()
            assert reply.content_type == "text/event-stream"
            async for line in reply.content:
                if line.strip() == b"data: [DONE]":
                    return
                if line.strip():
                    assert line.startswith(b"data: ")
                    yield orjson.loads(line[6:])
        pytest.fail("the stream ended without [DONE]")

    async def streamed(self, **body: Any) -> Any:
        """A stream's events joined to what the plain reply would be."""
        joined: Any = None
        async for event in self.events(**body):
            if joined is not None and self.is_incremental:
                event["text"] = joined["text"] + event["text"]
                event["output_ids"] = joined["output_ids"] + event["output_ids"]
                key = "output_token_logprobs"
                if key in event["meta_info"]:
                    event["meta_info"][key] = joined["meta_info"][key] + event["meta_info"][key]
            joined = event
        return joined

    async def update(self, index: int, version: str, **options: Any) -> None:
        """Load one of the two checkpoints."""
        path = self.weights[index]
        status, body = await self.post("/update_weights_from_disk", model_path=path, weight_version=version, **options)
        assert (status, body["success"]) == (200, True), body


async def _decoded(reply: aiohttp.ClientResponse) -> Any:
    data = await reply.read()
    return orjson.loads(data) if reply.content_type == "application/json" else data.decode()


@pytest.fixture
async def engine(target: Target) -> AsyncIterator[Engine]:
    """A client of the engine; afterwards it runs, is idle and has its first weights again."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=100)) as session:
        async with session.get(target.url + "/server_info") as reply:
            info = await reply.json()
        client = Engine(
            target.url, session, is_incremental=bool(info["incremental_streaming_output"]), weights=target.weights
        )
        yield client
        await client.post("/abort_request", abort_all=True)
        await client.post("/continue_generation")
        async with asyncio.timeout(60):
            await client.update(0, "start")
