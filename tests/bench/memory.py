"""What every process of a running stack weighs: right after its start, and after sessions ran on it."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from tests.bench.context import Bench
from tests.bench.report import Metric, compared

MIB = 2**20
SESSIONS = 4
INSTRUCTION = "Find out why the second test fails. words=80"


def weigh(pids: Mapping[str, int]) -> dict[str, int]:
    """Bytes by part, with its children that are no parts themselves; memory that processes share is divided (PSS)."""
    parts = set(pids.values())
    weights = {}
    for part, pid in pids.items():
        root = psutil.Process(pid)
        own = [root, *(process for process in root.children(recursive=True) if process.pid not in parts)]
        weights[part] = sum(map(_pss, own))
    return weights


async def measure(bench: Bench) -> list[Metric]:
    """Each part after the sessions of `bus_bytes`; the baseline is the same part before them."""
    stack = await bench.stack()
    if not stack.sampled_tokens:
        bench.say(f"{SESSIONS} sessions on a whole stack")
        await stack.run_sessions(INSTRUCTION, sessions=SESSIONS, turns=bench.size(20, 4))
    after = weigh(stack.pids)
    metrics = [
        compared(f"memory_{part.replace('-', '_')}", after[part] / MIB, "MiB", stack.weights_at_start[part] / MIB)
        for part in sorted(after)
    ]
    total, at_start = sum(after.values()) / MIB, sum(stack.weights_at_start.values()) / MIB
    return [*metrics, compared("memory_whole_stack", total, "MiB", at_start)]


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0
    except (psutil.AccessDenied, AttributeError):  # another system, or no right to look closer
        return int(process.memory_info().rss)
