"""The same draw of sessions on a real worker with the real orchestrator, thirty times as fast.

The bus is in memory and the proxy a stand-in; sandboxes, processes, heartbeats, facts and commands are real. What they cost is
thirty times as large against the stages as it would be, so the share is a floor.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from bus.memory import MemoryBus
from schemas.records import SessionEvent, TaskRequest
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.app import Orchestrator
from stream_processors.settings import ProcessorSettings
from tests.bench.staging import jobs
from tests.bench.staging_simulated import DEFAULTS, Job
from tests.bench.staging_simulated import World as Simulated
from tests.stage_workers.world import World, task, world
from tests.stream_processors.driver import Driven

FASTER: Final = 30
WITHIN_S: Final = 240.0


def _request(name: str, job: Job) -> TaskRequest:
    init_s, run_s, evaluate_s = (ms / 1000 / FASTER for ms in (job.init_ms, job.run_ms, job.evaluate_ms))
    spec = task(
        f"sleep {run_s:.3f}",
        prepare=[{"exec": f"sleep {init_s:.3f}"}],
        evaluator={"name": "command", "options": {"command": f"sleep {evaluate_s:.3f}"}},
    )
    return TaskRequest(task_id=name, policy_id="p", spec=spec)


async def live_share(state_dir: Path, count: int, seed: int) -> tuple[float, float]:
    """The share of time that the run slots of one worker are busy, and what the simulation says of the same sessions."""
    work = jobs(count, seed)
    bus = MemoryBus()
    driven = Driven(bus, lambda b: Orchestrator(b, ProcessorSettings(tick_s=0.05)))
    async with bus, world(bus, state_dir, heartbeat_s=0.2, **DEFAULTS) as around:
        ended = asyncio.create_task(_ended(bus, count))
        beside = [asyncio.create_task(part) for part in (*driven.processor.background(), _announce(around))]
        try:
            for n, job in enumerate(work):
                await bus.publish(_request(f"t{n}", job))
            async with asyncio.timeout(WITHIN_S):
                while not ended.done():
                    await driven.catch_up()
                    await asyncio.sleep(0.02)
        finally:
            for part in (*beside, ended):
                part.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*beside, ended)
    # By the worker's own clock; what a run takes is what it was asked to take.
    finished = max(e.at for e in _facts(bus) if e.type is Fact.FINISHED)
    began = min(e.at for e in _facts(bus) if e.type is Fact.REGISTERED)
    busy_ms = sum(job.run_ms for job in work) / FASTER
    return busy_ms / (DEFAULTS["run_slots"] * (finished - began)), Simulated(work, 1, is_staged=True).run()


async def _ended(bus: MemoryBus, count: int) -> None:
    """Return when so many sessions have ended."""
    left = count
    async for delivery in bus.tail(["rollout.sessions"]):
        left -= delivery.headers.get("type") == Fact.ENDED.encode()
        if not left:
            return


def _facts(bus: MemoryBus) -> list[SessionEvent]:
    return [e for d in bus.records("rollout.sessions") if isinstance(e := d.decode(), SessionEvent)]


async def _announce(around: World) -> None:
    """The stand-in proxy stays fresh."""
    while True:
        await asyncio.sleep(5)
        await around.announce_proxy()
