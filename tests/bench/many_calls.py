"""Thousands of slow calls at once: do all finish, in bounded time, and what does one of them weigh while it waits?

Two capture proxies, and then two bare mitmproxies with the same calls. The engine keeps every reply open after its first token
until all calls are in flight and for some seconds more, then ends them one by one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import aiohttp

from tests.bench.context import Bench
from tests.bench.errors import BenchError
from tests.bench.load import Connection, Sample, Target, chat_call, closed_loop, connect
from tests.bench.processes import Child
from tests.bench.report import Metric, compared, plain
from tests.bench.servers import bare_mitmproxy, capture_proxy, fake_engine

PROXIES = 2
CALLS_PER_SESSION = 10
"""Sub-agents and parallel tool loops: a session has several calls in flight."""
PROMPT = "Go through the whole repository and list every place where the counter is read. This takes a while."
HOLD_S = 6.0
"""How long all of them stay in flight: longer than a proxy's keep-alive interval, so that its cost is in the numbers."""
SPREAD_S = 3.0
FLOW_WITHIN_S = 60.0
"""From the first call to all in flight."""
END_WITHIN_S = 60.0
"""From the release to the last answer: the spread, and everything that a finish costs, for all calls at once."""
WARM_UP_CALLS = 40
CONNECTING = 50
"""Connections that are opened at a time: a flood of them measures the listen queue."""


@dataclass(frozen=True, slots=True)
class Held:
    """What happened to the calls of one system."""

    finished: int
    bytes_per_call: float
    flow_s: float
    end_s: float


async def measure(bench: Bench) -> list[Metric]:
    """All calls through the capture proxies, then through the bare ones."""
    calls = bench.size(2_000, 200)
    model_dir = await asyncio.to_thread(bench.model_dir)
    directory = bench.work_dir / "many"
    async with bench.topics("many") as bus:
        with ExitStack() as stack:
            engine = stack.enter_context(fake_engine(directory, model_dir))
            url = await engine.url()
            proxies = [
                stack.enter_context(capture_proxy(directory, model_dir, bus, url, name=f"proxy-{n}"))
                for n in range(PROXIES)
            ]
            sessions = calls // CALLS_PER_SESSION // PROXIES
            bases = [base for proxy in proxies for base in await proxy.open_sessions(sessions)]
            targets = [chat_call(base, PROMPT) for base in bases for _ in range(CALLS_PER_SESSION)]
            bench.say(f"{calls} calls in flight on {PROXIES} capture proxies")
            ours = await hold(targets, [proxy.child for proxy in proxies], url)
            for proxy in proxies:
                await proxy.await_relayed()
                await proxy.require_all_finished()
    with ExitStack() as stack:
        engine = stack.enter_context(fake_engine(directory, model_dir))
        url = await engine.url()
        bares = [stack.enter_context(bare_mitmproxy(directory, url, name=f"mitmproxy-{n}")) for n in range(PROXIES)]
        targets = [chat_call(f"{await bare.url()}/v1", PROMPT) for bare in bares for _ in range(calls // PROXIES)]
        bench.say(f"{calls} calls in flight on {PROXIES} bare mitmproxies")
        theirs = await hold(targets, bares, url)
    return [
        compared("many_calls_finished", ours.finished, "calls", theirs.finished),
        compared("many_calls_memory_per_call", ours.bytes_per_call / 1024, "KiB", theirs.bytes_per_call / 1024),
        compared("many_calls_all_in_flight_after", ours.flow_s, "s", theirs.flow_s),
        compared("many_calls_all_finished_after_release", ours.end_s, "s", theirs.end_s),
        plain("many_calls_held", HOLD_S, "s"),
    ]


async def hold(targets: Sequence[Target], proxies: Sequence[Child], engine_url: str) -> Held:
    """Bring one call per target into flight, weigh the proxies, let the calls end. Raises BenchError when one doesn't."""
    step = max(1, len(targets) // WARM_UP_CALLS)
    await closed_loop(targets[::step], WARM_UP_CALLS, within_s=FLOW_WITHIN_S)
    before = sum(child.rss_bytes() for child in proxies)
    connections: list[Connection] = []
    async with aiohttp.ClientSession(engine_url, timeout=aiohttp.ClientTimeout(total=30)) as engine:
        try:
            await _post(engine, "/bench/hold", {"spread_s": SPREAD_S})
            for start in range(0, len(targets), CONNECTING):
                connections += await asyncio.gather(*map(connect, targets[start : start + CONNECTING]))
            began = time.perf_counter()
            answers = [c.send(target.request) for c, target in zip(connections, targets, strict=True)]
            await _until(lambda: _are_waiting(engine, len(targets), answers), FLOW_WITHIN_S, "calls in flight")
            flow_s = time.perf_counter() - began
            await asyncio.sleep(HOLD_S)
            weight = sum(child.rss_bytes() for child in proxies) - before
            released = time.perf_counter()
            await _post(engine, "/bench/release", {})
            done, late = await asyncio.wait(answers, timeout=END_WITHIN_S)
            end_s = time.perf_counter() - released
        finally:
            for connection in connections:
                connection.close()
    good = sum(answer.result().is_good for answer in done)
    if late or good != len(targets):
        bad = next((c.last_words for c in connections if c.last_words and b"[DONE]" not in c.last_words.encode()), "")
        raise BenchError(f"{good} of {len(targets)} calls finished well, {len(late)} not at all: {bad}")
    return Held(good, weight / len(targets), flow_s, end_s)


async def _are_waiting(engine: aiohttp.ClientSession, count: int, answers: Sequence[asyncio.Future[Sample]]) -> bool:
    ended = [answer.result() for answer in answers if answer.done()]
    if ended:
        raise BenchError(f"{len(ended)} calls ended before they were let go: {ended[0]}")
    async with engine.get("/bench/state") as response:
        return bool((await response.json())["waiting"] >= count)


async def _post(engine: aiohttp.ClientSession, path: str, body: dict[str, float]) -> None:
    async with engine.post(path, json=body) as response:
        response.raise_for_status()


async def _until(condition: Callable[[], Awaitable[bool]], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > deadline:
            raise BenchError(f"not all {what} after {within_s:.0f} s")
        await asyncio.sleep(0.2)
