"""The servers that calls are sent to: the fake engine, the bare mitmproxy, and the capture proxy with open leases."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from pydantic import SecretStr

from bus import BusSettings
from capture_proxy.settings import EngineSettings, ProxySettings
from schemas import ids
from tests.bench.errors import BenchError
from tests.bench.processes import Child, child

POLICY = "bench"


@contextmanager
def fake_engine(work_dir: Path, model_dir: Path, *, name: str = "engine") -> Iterator[Child]:
    """A fake engine; see `Child.url`."""
    argv = ["-m", "tests.bench.fake_engine", "--ready", "{ready}", "--model-dir", str(model_dir)]
    with child(name, argv, work_dir) as started:
        yield started


@contextmanager
def bare_mitmproxy(work_dir: Path, upstream: str, *, name: str = "mitmproxy") -> Iterator[Child]:
    """A bare mitmproxy before an engine; see `Child.url`."""
    argv = ["-m", "tests.bench.bare_mitmproxy", "--ready", "{ready}", "--upstream", upstream]
    with child(name, argv, work_dir) as started:
        yield started


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running capture proxy."""

    child: Child
    admin_key: str

    async def open_sessions(self, count: int) -> list[str]:
        """Open a lease for each of `count` new sessions; the base URLs for their Chat Completions calls."""
        return [url for _, url in await self.open_named(count)]

    async def open_named(self, count: int) -> list[tuple[str, str]]:
        """The same, with the sessions' ids."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        ready = await self.child.ready()
        urls = []
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30)) as client:
            for _ in range(count):
                session_id, secret = str(uuid.uuid4()), secrets.token_urlsafe(24)
                body = {
                    "session_id": session_id,
                    "attempt": 1,
                    "lease_id": ids.lease_id(session_id, 1),
                    "secret_hash": ids.secret_hash(secret),
                    "writer": 1,
                    "takes_over": 0,
                    "spec": {"task_id": "bench", "group_id": session_id, "policy_id": POLICY, "harness": "bench"},
                }
                async with client.post(f"{ready['admin_address']}/leases/open", json=body) as answer:
                    if answer.status != 200:
                        raise BenchError(f"the proxy opened no lease: {answer.status} {await answer.text()}")
                urls.append((session_id, f"{ready['data_address']}/s/{secret}/v1"))
        return urls

    async def health(self) -> dict[str, Any]:
        """What the proxy says of itself."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        address = (await self.child.ready())["admin_address"]
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.request("GET", f"{address}/health", headers=headers, timeout=timeout) as answer:
            health: dict[str, Any] = await answer.json()
        return health

    async def require_all_finished(self) -> None:
        """Raise BenchError when the proxy itself says that a call didn't end well."""
        counts = (await self.health())["counts"]
        if counts.get("started") != counts.get("finished"):
            raise BenchError(f"the proxy counts {counts}: not every call finished")

    async def await_relayed(self, within_s: float = 30.0) -> None:
        """Wait until Kafka has all that the proxy recorded."""
        try:
            async with asyncio.timeout(within_s):
                while (await self.health())["spool"]["unacked_entries"]:
                    await asyncio.sleep(0.05)
        except TimeoutError as late:
            raise BenchError(f"Kafka didn't take the proxy's records within {within_s:.0f} s") from late


@contextmanager
def capture_proxy(
    work_dir: Path,
    model_dir: Path,
    bus: BusSettings,
    engine_url: str,
    *,
    name: str = "proxy",
    context_length: int | None = None,
) -> Iterator[Proxy]:
    """A capture proxy as the process that it is in production, before one engine."""
    work_dir.mkdir(parents=True, exist_ok=True)
    ready_file = work_dir / f"{name}.ready.json"
    key = secrets.token_urlsafe(24)
    settings = ProxySettings(
        proxy_id=name,
        bus=bus,
        spool_dir=work_dir / f"spool-{name}",
        model_dir=model_dir,
        engines=(EngineSettings(url=engine_url),),
        admin_key=SecretStr(key),
        ports_file=ready_file,
        context_length=context_length,
    )
    file = work_dir / f"{name}.settings.json"
    # Secrets leave a settings object as asterisks; the child needs the key itself.
    values = settings.model_dump(mode="json", exclude_defaults=True) | {"admin_key": key}
    file.write_bytes(orjson.dumps(values))
    with child(name, ["-m", "capture_proxy", "--settings-json", str(file)], work_dir) as started:
        yield Proxy(started, key)
