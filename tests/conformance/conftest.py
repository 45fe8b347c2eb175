"""One engine for the whole conformance suite: a given one, or our CPU engine as its own process.

POLYNYA_CONFORMANCE_URL       base URL of a running engine (random weights are fine)
POLYNYA_CONFORMANCE_KIND      sglang (default), cpu, vllm, vllm_chat or openai: which client is tested with it
POLYNYA_CONFORMANCE_WEIGHTS   two checkpoint directories that it can load, separated by a colon: the running one first.
                              One is enough for kinds whose weights the suite doesn't change.

POLYNYA_CONFORMANCE_TOLERANCE how far logprobs may be off (default 1e-4)

`make conformance` and `make conformance-sglang` set them.
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

TOLERANCE = float(os.environ.get("POLYNYA_CONFORMANCE_TOLERANCE") or 1e-4)
"""Of logprobs against transformers in float32; an engine in bf16 needs 5e-2."""
START_LIMIT_S = 240.0  # importing torch on a machine with other work


@dataclass(frozen=True)
class Target:
    """The engine under test and two checkpoints that it can load."""

    url: str
    weights: tuple[str, str]
    kind: str = "cpu"

    @property
    def speaks_sglang(self) -> bool:
        """Whether the tests of SGLang's own protocol, weight updates among them, concern it."""
        return self.kind in ("sglang", "cpu")


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The engine that the suite talks to."""
    url = os.environ.get("POLYNYA_CONFORMANCE_URL")
    if url:
        first, _, second = os.environ.get("POLYNYA_CONFORMANCE_WEIGHTS", "").partition(":")
        kind = os.environ.get("POLYNYA_CONFORMANCE_KIND") or "sglang"
        found = Target(url.rstrip("/"), (first, second), kind)
        assert first, "POLYNYA_CONFORMANCE_WEIGHTS must name the checkpoint directory that the engine serves"
        assert second or not found.speaks_sglang, (
            "POLYNYA_CONFORMANCE_WEIGHTS must name a second checkpoint, after a colon"
        )
        yield found
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
                for key in ("output_token_logprobs", "output_top_logprobs"):
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
    if not target.speaks_sglang:
        pytest.skip(f"of SGLang's protocol, which {target.kind} doesn't speak")
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


@pytest.fixture(scope="session")
def renderer(target: Target) -> Any:
    """The proxy's own tokenizer and template, of the directory that the engine serves."""
    from capture_proxy.rendering.load import load_renderer

    return load_renderer(target.weights[0])


@pytest.fixture
async def client(target: Target) -> AsyncIterator[Any]:
    """The proxy's client of this engine, probed."""
    from capture_proxy.engines import make_engine

    made = make_engine(target.kind, target.url)
    try:
        async with asyncio.timeout(100):
            made.info = await made.probe([1000, 2000, 300])  # type: ignore[attr-defined]
        yield made
    finally:
        await made.close()


class Forward:
    """A checkpoint's own probabilities, in float32, by transformers."""

    def __init__(self, directory: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def logprobs(self, prompt: list[int], output: list[int], *, temperature: float = 1.0) -> list[float]:
        """The log-probability of each output token, of the whole distribution after the temperature."""
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        rows = (logits / temperature).log_softmax(-1)
        return [float(rows[at, token]) for at, token in enumerate(output)]


@pytest.fixture(scope="session")
def forward(target: Target) -> Forward:
    """The checkpoint that the engine begins with."""
    return Forward(target.weights[0])
