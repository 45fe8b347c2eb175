"""What the capture proxy adds to a call, over the bare engine and over the bare mitmproxy library, and its CPU per call.

The same small streamed Chat Completions call goes to all three in turns, in several rounds, so that what else the machine does
meets all of them. Callers call again as soon as they are answered: at 16 and 64 the engine, the load and the proxy share the
cores, and latency is mostly waiting for a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.bench.context import Bench
from tests.bench.load import Sample, Target, chat_call, closed_loop
from tests.bench.processes import Child
from tests.bench.report import Metric, added, compared, percentile
from tests.bench.servers import Proxy, bare_mitmproxy, capture_proxy, fake_engine

CONCURRENCIES = (1, 16, 64)
ROUNDS = 3
PROMPT = "The second of three tests fails. Read counter.py, find out why, and say in one sentence what you changed."
LOOP_WITHIN_S = 60.0
CPU_AT = 16
"""The concurrency at which CPU per call is taken: busy, but not queueing."""


@dataclass(slots=True)
class System:
    """One of the three, and what was measured of it by concurrency."""

    child: Child
    targets: list[Target]
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    loop_s: dict[int, float] = field(default_factory=dict)
    cpu_s: dict[int, float] = field(default_factory=dict)

    async def run(self, concurrency: int, calls: int, *, is_kept: bool, proxy: Proxy | None) -> None:
        """One round."""
        cpu, began = self.child.cpu_s(), time.perf_counter()
        samples = await closed_loop(self.targets[:concurrency], calls, within_s=LOOP_WITHIN_S)
        loop_s = time.perf_counter() - began
        if proxy is not None:
            await proxy.await_relayed()  # what it still sends to Kafka belongs to these calls
        if is_kept:
            self.samples.setdefault(concurrency, []).extend(samples)
            self.loop_s[concurrency] = self.loop_s.get(concurrency, 0.0) + loop_s
            self.cpu_s[concurrency] = self.cpu_s.get(concurrency, 0.0) + self.child.cpu_s() - cpu

    def latency_ms(self, concurrency: int, share: float) -> float:
        """A percentile of the time to an answer's end."""
        return 1000 * percentile([s.total_s for s in self.samples[concurrency]], share)

    def first_text_ms(self, concurrency: int, share: float) -> float:
        """A percentile of the time to the first text."""
        return 1000 * percentile([s.first_s for s in self.samples[concurrency]], share)

    def calls_per_s(self, concurrency: int) -> float:
        """Answered calls per second."""
        return len(self.samples[concurrency]) / self.loop_s[concurrency]

    def cpu_ms(self, concurrency: int) -> float:
        """CPU milliseconds of the process per call."""
        return 1000 * self.cpu_s[concurrency] / len(self.samples[concurrency])


async def measure(bench: Bench) -> list[Metric]:
    """Run the three side by side."""
    model_dir = await asyncio.to_thread(bench.model_dir)
    directory = bench.work_dir / "latency"
    most = max(CONCURRENCIES)
    async with bench.topics("latency") as bus:
        with ExitStack() as stack:
            engine = stack.enter_context(fake_engine(directory, model_dir))
            url = await engine.url()
            mitm = stack.enter_context(bare_mitmproxy(directory, url))
            proxy = stack.enter_context(capture_proxy(directory, model_dir, bus, url))
            bases = await proxy.open_sessions(most)
            direct = System(engine, [chat_call(f"{url}/v1", PROMPT)] * most)
            bare = System(mitm, [chat_call(f"{await mitm.url()}/v1", PROMPT)] * most)
            ours = System(proxy.child, [chat_call(base, PROMPT) for base in bases])
            for concurrency in CONCURRENCIES:
                calls = bench.size(150 if concurrency == 1 else 400, 30 if concurrency == 1 else 80)
                bench.say(f"latency at concurrency {concurrency}: {ROUNDS} rounds of {calls} calls each")
                for round_ in range(ROUNDS + 1):  # the first one warms up
                    for system in (direct, bare, ours):
                        await system.run(
                            concurrency,
                            calls if round_ else min(calls, 4 * concurrency),
                            is_kept=round_ > 0,
                            proxy=proxy if system is ours else None,
                        )
            await proxy.require_all_finished()
    return report(direct, bare, ours)


def report(direct: System, bare: System, ours: System) -> list[Metric]:
    """The metrics of the three systems."""
    metrics: list[Metric] = []
    for concurrency in CONCURRENCIES:
        metrics += _added("engine", direct, ours, concurrency)
        metrics += _added("mitmproxy", bare, ours, concurrency)
    metrics.append(
        added(
            "proxy_added_over_mitmproxy_first_text_c1_p50", ours.first_text_ms(1, 0.5), "ms", bare.first_text_ms(1, 0.5)
        )
    )
    most = max(CONCURRENCIES)
    metrics.append(compared(f"proxy_calls_per_s_c{most}", ours.calls_per_s(most), "1/s", bare.calls_per_s(most)))
    metrics.append(compared("proxy_cpu_per_call", ours.cpu_ms(CPU_AT), "ms", bare.cpu_ms(CPU_AT)))
    return metrics


def _added(name: str, base: System, ours: System, concurrency: int) -> Sequence[Metric]:
    return [
        added(
            f"proxy_added_over_{name}_c{concurrency}_p{round(100 * share)}",
            ours.latency_ms(concurrency, share),
            "ms",
            base.latency_ms(concurrency, share),
        )
        for share in (0.5, 0.99)
    ]
