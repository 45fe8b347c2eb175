"""Thousands of random requests at 32 connections: no exception, no stuck flow, no leak, and every request accounted for."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from bus.deliveries import Position
from bus.memory import MemoryBus
from capture_proxy.exchange import exchange_of
from capture_proxy.service import CaptureProxy
from capture_proxy.settings import EngineSettings, ProxySettings
from schemas import ids
from tests.capture_proxy.fakes import CharRenderer
from tests.fuzz.client import Target, make, play
from tests.fuzz.seed import the_seed

CONNECTIONS = 32
PER_LEASE = 250
"""Requests before the next lease: an open lease rightly remembers its calls, so memory can only be judged across several."""
ROOM_BYTES = 96 << 20
"""What the process may have grown by between the warmed-up state and the end: caches, arenas, the list of sealed leases."""
ROOM_OBJECTS = 60_000


class ForgetfulBus(MemoryBus):
    """Acknowledges everything and keeps nothing."""

    async def publish_raw(self, topic: str, *_: Any, **__: Any) -> Position:
        return Position(topic=topic, partition=0, offset=0)


class Watcher:
    """The last addon: how each request ended. One that began must end, and be a call, a refusal or an answer of the proxy's own."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.ends: Counter[str] = Counter()
        self.odd: list[str] = []

    def requestheaders(self, flow: Any) -> None:
        self.open.add(flow.id)

    def response(self, flow: Any) -> None:
        self._end(flow)

    def error(self, flow: Any) -> None:
        self._end(flow)

    def _end(self, flow: Any) -> None:
        exchange = exchange_of(flow)
        how = "call" if exchange.call else "refused" if exchange.is_refused else "answered" if flow.response else ""
        self.open.discard(flow.id)
        if not how:
            self.odd.append(f"{flow.request.method} {flow.request.path[:80]}: {flow.error}")
        if flow.metadata.setdefault("polynya.fuzz", how) is how:
            self.ends[how] += 1


class Troubles(logging.Handler):
    """Everything that was logged as an error, by us, by mitmproxy or by asyncio."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record)[-1500:])

    def of_ours(self, _logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        """A structlog processor."""
        if method in {"error", "exception", "critical"}:
            self.seen.append(str(structlog.processors.format_exc_info(None, method, dict(event)))[-1500:])
        raise structlog.DropEvent


@pytest.fixture
def troubles() -> Any:
    """Watches the logs; put back as they were afterwards."""
    watch = Troubles()
    before = structlog.get_config()
    structlog.configure(processors=[watch.of_ours], cache_logger_on_first_use=False)
    logging.getLogger().addHandler(watch)
    yield watch
    logging.getLogger().removeHandler(watch)
    structlog.configure(**before)


@pytest.fixture
async def engine_url() -> AsyncIterator[str]:
    """A fake engine in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fuzz.engine", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), 60.0)).decode().strip()
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 20.0)
        process._transport.close()  # type: ignore[attr-defined]


def rss_bytes() -> int:
    """Of this process, now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Run:
    """One proxy under fire."""

    def __init__(self, proxy: CaptureProxy, http: aiohttp.ClientSession, seed: int) -> None:
        self.proxy = proxy
        self.http = http
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.leases = 0

    async def lease(self) -> tuple[str, str]:
        """A new open lease: its id and its secret."""
        self.leases += 1
        lease_id, secret = f"lease-{self.leases}", f"secret-{self.leases}"
        body = {
            "session_id": f"session-{self.leases}",
            "attempt": 1,
            "lease_id": lease_id,
            "secret_hash": ids.secret_hash(secret),
            "writer": 1,
            "takes_over": 0,
            "spec": {"task_id": "t", "group_id": "g", "policy_id": "p", "harness": "shell"},
        }
        await self._admin("/leases/open", body)
        return lease_id, secret

    async def _admin(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"authorization": "Bearer admin-key"}
        async with self.http.post(self.proxy.admin_address + path, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def fire(self, count: int) -> None:
        """So many requests under one lease, then its seal: which must come, whatever happened."""
        lease_id, secret = await self.lease()
        target = Target(self.proxy.listener.port, self.proxy.listener.forward_port, secret)
        queue = [make(self.rng, target) for _ in range(count)]

        async def worker() -> None:
            while queue:
                request = queue.pop()
                try:
                    async with asyncio.timeout(60.0):
                        await play(request, self.outcomes)
                except TimeoutError:
                    pytest.fail(f"no end within 60 s: {request.head[:300]!r} {request.body[:300]!r}")

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
        async with asyncio.timeout(30.0):
            await self._admin("/leases/seal", {"lease_id": lease_id, "writer": 1, "reason": "done"})


async def fuzz(total: int, engine_url: str, root: Path, authority: Path, troubles: Troubles) -> None:
    """The whole: warm-up, fire, and what must hold afterwards."""
    seed = the_seed()
    print(f"POLYNYA_FUZZ_SEED={seed}")
    settings = ProxySettings(
        proxy_id="proxy-fuzz",
        spool_dir=root / "spool",
        model_dir=root,
        engines=(EngineSettings(url=engine_url),),
        admin_key="admin-key",
        forward_port=0,
        authority_dir=authority,
        context_length=1_000_000,
        max_request_bytes=1 << 20,
        seal_drain_s=5.0,
        max_loop_lag_s=60.0,
    )
    async with ForgetfulBus(partitions=1) as bus, aiohttp.ClientSession() as http:
        proxy = CaptureProxy(settings, bus, CharRenderer())
        await proxy.start()
        watcher = Watcher()
        proxy.listener._master.addons.add(watcher)
        run = Run(proxy, http, seed)
        try:
            await run.fire(PER_LEASE)
            before_bytes, before_objects = 0, 0
            rounds = max(2, total // PER_LEASE)
            for number in range(1, rounds):
                await run.fire(PER_LEASE)
                if number == rounds // 4:
                    before_bytes, before_objects = rss_bytes(), len(gc.get_objects())
            await settled(proxy, watcher)
            judge(proxy, watcher, run, troubles)
            if total >= 5000:  # fewer say nothing about memory
                grown = rss_bytes() - before_bytes
                assert grown < ROOM_BYTES, f"{grown >> 20} MiB more than after the first quarter"
                assert len(gc.get_objects()) - before_objects < ROOM_OBJECTS
        finally:
            await proxy.stop()
    assert troubles.seen == []


async def settled(proxy: CaptureProxy, watcher: Watcher) -> None:
    """Waits until the last clients' ends have been seen."""
    async with asyncio.timeout(20.0):
        while proxy.listener.connections or proxy.tap.in_flight or watcher.open:
            await asyncio.sleep(0.02)


def judge(proxy: CaptureProxy, watcher: Watcher, run: Run, troubles: Troubles) -> None:
    """No crash, nothing left open, and the counts add up."""
    told = f"{dict(run.outcomes)} {dict(proxy.recorder.counts)} {dict(watcher.ends)}"
    print(told, *troubles.seen[:3], sep="\n")
    assert troubles.seen == []
    assert watcher.odd == []
    assert run.outcomes["500"] == 0, told
    counts, admit = proxy.recorder.counts, proxy._steps.addons[0]
    assert counts["started"] == watcher.ends["call"] == sum(counts.get(s, 0) for s in ("finished", "failed", "aborted"))
    # Refusals at the gate, of tunnels and of broken HTTP meet no request hook, so the watcher may have seen fewer of them.
    assert counts["rejected"] >= watcher.ends["refused"]
    assert counts["started"] > run.leases * PER_LEASE // 5, told
    assert "upstream_prevented" not in counts
    assert (admit.bodies_bytes, admit._bodies, admit._reading) == (0, {}, {})
    assert proxy.recorder._running == {}
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("call-", "sample-"))]
    deliver = next(addon for addon in proxy._steps.addons if type(addon).__name__ == "Deliver")
    assert deliver._by_client == {}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all runs."""
    return tmp_path_factory.mktemp("authority") / "ca"


@pytest.mark.component
@pytest.mark.timeout(300)
async def test_a_thousand_requests(engine_url: str, tmp_path: Path, authority: Path, troubles: Troubles) -> None:
    """The short form, for every run of the tests."""
    await fuzz(1_000, engine_url, tmp_path, authority, troubles)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_twenty_thousand_requests(engine_url: str, tmp_path: Path, authority: Path, troubles: Troubles) -> None:
    """The long form, with memory back where it was."""
    await fuzz(20_000, engine_url, tmp_path, authority, troubles)
