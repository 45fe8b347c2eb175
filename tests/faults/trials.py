"""Runs CLIs into faults, several at a time, before one proxy; and reads from the log what each session left."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import SecretStr

import harnesses
from bus.memory import MemoryBus
from capture_proxy.rendering.load import load_renderer
from capture_proxy.service import CaptureProxy
from capture_proxy.settings import EngineSettings, ProxySettings
from compose.cpu_engine.tiny_model import ensure_tiny_model
from compose.trial.session import Run, run_harness
from schemas import ids
from schemas.records import CompletionDelivery, CompletionRecord, SessionSealed, SessionSpec, Trajectory
from stream_processors.assembler.core import build_trajectory
from tests.faults.engine import FaultEngine
from tests.faults.faults import FAULTS, Fault
from tests.faults.task import instruction

CLIS = ("claude_code", "codex", "gemini_cli", "qwen_code", "opencode", "pi")
LIMIT_S = 300.0
"""Of one session: the stall, the longest pause that a harness makes, and half a minute of computing on a busy machine. Who needs more hangs."""
STALLING, BUSY = 3, 4
"""Sessions at a time: those that mostly wait for a stalled engine, and all others."""
POLICY = "faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One CLI's meeting with one fault: how the run ended, and everything that was captured of it."""

    harness: str
    fault: Fault
    run: Run
    calls: list[CompletionRecord]
    """By call number; every record, so a repeated one shows."""
    deliveries: list[CompletionDelivery]
    seal: SessionSealed
    asked: dict[str, int]
    """How often each call reached the engine."""
    trajectory: Trajectory

    def report(self) -> str:
        """Enough to see what happened."""
        calls = [
            (c.call_seq, str(c.state), c.untrainable_reason, c.error and (c.error.kind, c.error.status), c.prompt_len)
            for c in self.calls
        ]
        result = self.run.result
        return (
            f"{self.harness}, {self.fault.name}: {self.run.verdict}, exit {result.exit_code}, timed out {result.timed_out}, "
            f"{self.run.seconds:.0f} s, calls {calls}, files {sorted(self.run.files)}: {result.tail(600)}"
        )


@dataclass(slots=True)
class Site:
    """A proxy before the faulty engine."""

    proxy: CaptureProxy
    engine: FaultEngine
    bus: MemoryBus
    admin: aiohttp.ClientSession
    _specs: dict[str, SessionSpec] = field(default_factory=dict)

    async def run(self, harness: str, fault: Fault, limit_s: float) -> tuple[str, Run]:
        """One session from its opening to its seal; its id, and how the harness' run ended."""
        session_id, secret = f"{harness}-{fault.name}", secrets.token_urlsafe(24)
        lease_id = ids.lease_id(session_id, 1)
        self.engine.inject(session_id, lease_id, fault)
        spec = {"task_id": "faults", "group_id": session_id, "policy_id": POLICY, "harness": harness}
        opening = {
            "session_id": session_id,
            "attempt": 1,
            "lease_id": lease_id,
            "secret_hash": ids.secret_hash(secret),
            "writer": 1,
            "takes_over": 0,
            "spec": spec,
        }
        await self._post("/leases/open", opening)
        adapter = harnesses.get(harness)
        try:
            run = await run_harness(
                adapter,
                {},
                instruction=instruction(in_call=fault.in_call),
                urls=harnesses.base_urls(self.proxy.data_address, secret, adapter.url_form),
                secret=secret,
                timeout_s=limit_s,
            )
        finally:
            await self._post("/leases/seal", {"lease_id": lease_id, "writer": 1, "reason": "done"})
        return session_id, run

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        async with self.admin.post(self.proxy.admin_address + path, json=body) as answer:
            assert answer.status == 200, await answer.text()

    def trial(self, harness: str, fault: Fault, session_id: str, run: Run) -> Trial:
        """What the log holds of a session."""
        lease_id = ids.lease_id(session_id, 1)
        records = [
            r for d in self.bus.records("capture.completions") if d.key == session_id.encode() and (r := d.decode())
        ]
        calls = sorted((r for r in records if isinstance(r, CompletionRecord)), key=lambda c: c.call_seq)
        deliveries = [r for r in records if isinstance(r, CompletionDelivery)]
        spec = SessionSpec(task_id="faults", group_id=session_id, policy_id=POLICY, harness=harness)
        (seal,) = (r for r in records if isinstance(r, SessionSealed))
        return Trial(
            harness=harness,
            fault=fault,
            run=run,
            calls=calls,
            deliveries=deliveries,
            seal=seal,
            asked={c.completion_id: self.engine.asked[c.completion_id] for c in calls},
            trajectory=build_trajectory(session_id, lease_id, spec, calls, deliveries),
        )


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    """A running proxy and its engine; nothing of them is left afterwards."""
    model_dir = await asyncio.to_thread(ensure_tiny_model)
    renderer = await asyncio.to_thread(load_renderer, model_dir)
    key = secrets.token_urlsafe(24)
    timeout = aiohttp.ClientTimeout(total=60)
    headers = {"authorization": f"Bearer {key}"}
    async with (
        MemoryBus(partitions=3, blob_url=f"file://{directory}/blobs") as bus,
        FaultEngine(renderer).serving() as engine,
        aiohttp.ClientSession(headers=headers, timeout=timeout) as admin,
    ):
        assert isinstance(engine, FaultEngine)
        settings = ProxySettings(
            proxy_id="faults",
            spool_dir=directory / "spool",
            model_dir=model_dir,
            engines=(EngineSettings(url=engine.url),),
            admin_key=SecretStr(key),
            # The CLIs start beside it on the same cores: a late loop is no reason to refuse a call here.
            max_loop_lag_s=60.0,
        )
        proxy = CaptureProxy(settings, bus, renderer)
        await proxy.start()
        try:
            yield Site(proxy, engine, bus, admin)
        finally:
            await proxy.stop()


async def run_trials(
    names: Sequence[str] = CLIS,
    faults: Sequence[Fault] = FAULTS,
    *,
    limit_s: float = LIMIT_S,
    report: Callable[[str], None] = lambda _line: None,
) -> dict[tuple[str, str], Trial]:
    """Every CLI into every fault; by (harness, fault)."""
    for name in names:
        await asyncio.to_thread(harnesses.ensure_installed, harnesses.get(name))
    lanes = {True: asyncio.Semaphore(STALLING), False: asyncio.Semaphore(BUSY)}
    with tempfile.TemporaryDirectory(prefix="polynya-faults-") as directory:
        async with site(Path(directory)) as place:

            async def one(name: str, fault: Fault) -> tuple[str, Run]:
                async with lanes[fault.kind == "stall"]:
                    session_id, run = await place.run(name, fault, limit_s)
                    report(f"{session_id}: {run.verdict}, {run.seconds:.1f} s")
                    return session_id, run

            pairs = [(name, fault) for fault in faults for name in names]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(name, fault)) for name, fault in pairs]
            async with asyncio.timeout(30):
                while place.proxy.spool.relay.unacked:
                    await asyncio.sleep(0.05)
            return {
                (name, fault.name): place.trial(name, fault, *task.result())
                for (name, fault), task in zip(pairs, tasks, strict=True)
            }
