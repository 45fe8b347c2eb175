"""What a two-call session costs on a whole stack, by process: real Pi, three at a time, in groups of four, and a trainer that reads.

CPU seconds come from /proc, so a machine that others use, too, changes them little; seconds of wall time and what follows from
them (sessions per second, the latency, the share of time that the slots are busy) hold for a quiet one only. The harness is
measured by the shell that starts it, so that what the worker's other children cost (the launcher before the harness, the
network of the sandbox, the evaluator's command) counts as ours. What the stack costs while nothing runs is measured first, per
second: its share in a session's figures is as large as the sessions are slow (`session_cost_ours_beyond_idle` is without it).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bus import Bus, BusSettings
from compose.cli.task_file import request_of
from compose.demo.family import PI_ARGUMENTS
from harnesses import ensure_installed, get
from schemas.records import ScoredTrajectory, SessionEvent, SessionEventType, Status
from schemas.task import TaskSpec
from tests.bench import writes
from tests.bench.context import Bench
from tests.bench.cpu import CpuTime, cpu_times, shell_times
from tests.bench.errors import BenchError
from tests.bench.processes import ROOT, child
from tests.bench.report import Metric, compared, percentile, plain
from tests.bench.stack import BenchStack, running_stack

POLICY = "scripted:tests.bench.writes:reply"
HARNESS = "measured_pi"
GROUP: Final = 4
AT_ONCE: Final = 3
IDLE_S: Final = 10.0
WITHIN_S: Final = 200.0
SHELL = '"$@"; code=$?; times >"$0/$$"; exit $code'
"""Starts a harness, and leaves its CPU seconds in a file."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sessions that ran, and what the log says of them; times in UTC epoch ms."""

    scored: dict[str, ScoredTrajectory]
    scored_at: dict[str, int]
    facts: list[SessionEvent]
    submitted_at: int

    @property
    def wall_s(self) -> float:
        """From the submission to the last score."""
        return (max(self.scored_at.values()) - self.submitted_at) / 1000

    def at(self, kind: SessionEventType) -> dict[str, int]:
        """When each session had its fact of that kind, by the worker's clock."""
        return {e.session_id: e.at for e in self.facts if e.type is kind}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds per session of each part and of the harness, per second of each part of an idle stack, and how long they ran."""

    parts: dict[str, float]
    harness_s: float
    idle: dict[str, float]
    wall_s: float
    batch: Batch
    up_s: float


async def measure(bench: Bench) -> list[Metric]:
    """One stack, a warm-up, an idle time, and the sessions."""
    cost = await cost_of(bench, sessions=bench.size(64, 8))
    batch = cost.batch
    began, finished, sealed = (
        batch.at(k) for k in (SessionEventType.STARTED, SessionEventType.FINISHED, SessionEventType.SEALED)
    )
    waits = [float(batch.scored_at[s] - finished[s]) for s in batch.scored]
    busy_ms = sum(sealed[s] - began[s] for s in batch.scored)
    span_ms = max(sealed.values()) - min(began.values())
    ours, idle = sum(cost.parts.values()), sum(cost.idle.values())
    beyond = ours - idle * cost.wall_s / len(batch.scored)
    return [
        plain("session_cost_harness", cost.harness_s * 1000, "CPU ms"),
        *(plain(f"session_cost_{part}", s * 1000, "CPU ms") for part, s in cost.parts.items()),
        compared("session_cost_ours", ours * 1000, "CPU ms", cost.harness_s * 1000),
        compared("session_cost_ours_beyond_idle", beyond * 1000, "CPU ms", cost.harness_s * 1000),
        *(plain(f"session_idle_{part}", s * 1000, "CPU ms/s") for part, s in cost.idle.items()),
        plain("session_idle_all", idle * 1000, "CPU ms/s"),
        plain("session_rate", len(batch.scored) / batch.wall_s, "sessions/s"),
        plain("session_exit_to_scored_p50", percentile(waits, 0.5), "ms"),
        plain("session_exit_to_scored_p90", percentile(waits, 0.9), "ms"),
        plain("session_run_slots_busy", 100 * busy_ms / (AT_ONCE * span_ms), "%"),
        plain("session_stack_up", cost.up_s, "s"),
    ]


async def cost_of(bench: Bench, *, sessions: int) -> Cost:
    """Run so many sessions on a stack of their own. BenchError unless each went as it should."""
    await asyncio.to_thread(ensure_installed, get("pi"))
    directory = bench.work_dir / "session-cost"
    times = directory / "times"
    times.mkdir(parents=True)
    env = {"POLYNYA_HARNESS_DIR": str(_definition(directory, times)), "POLYNYA_RUN_SLOTS": str(AT_ONCE)}
    await bench.close()  # what others started would be measured, too
    bench.say("starting a whole stack")
    began = time.monotonic()
    async with running_stack(directory, policy=POLICY, env=env) as stack:
        up_s = time.monotonic() - began
        async with stack.stack.bus() as bus:
            trainer = ["-m", "tests.bench.reading_trainer", "--ready", "{ready}"]
            with child("trainer", [*trainer, "--bus", _settings(stack).model_dump_json()], directory) as reading:
                await reading.ready()
                pids = {**{name.replace("-", "_"): pid for name, pid in stack.pids.items()}, "trainer": reading.pid}
                bench.say("a warm-up")
                await _run(bus, "warm", 2 * GROUP)
                before, at = cpu_times(pids), time.monotonic()
                await asyncio.sleep(IDLE_S)
                idle_s = time.monotonic() - at
                idle = {name: _total(spent) / idle_s for name, spent in _since(before, pids).items()}
                for path in times.iterdir():
                    path.unlink()
                bench.say(f"{sessions} sessions, {AT_ONCE} at a time")
                before, at = cpu_times(pids), time.monotonic()
                batch = await _run(bus, "timed", sessions)
                spent, wall_s = _since(before, pids), time.monotonic() - at
    told = [shell_times(path.read_text()) for path in times.iterdir()]
    if len(told) != sessions:
        raise BenchError(f"{len(told)} harnesses told their CPU seconds, not {sessions}")
    harness_s = sum(children for _, children in told)
    parts = {name: cpu.own_s / sessions for name, cpu in sorted(spent.items())}
    parts["launches"] = sum(own for own, _ in told) / sessions
    parts["helpers"] = (spent["worker"].reaped_s - harness_s) / sessions - parts["launches"]
    return Cost(parts, harness_s / sessions, idle, wall_s, batch, up_s)


def _definition(directory: Path, times: Path) -> Path:
    """A directory with Pi's own definition, but for the shell that starts it, and the lean flags."""
    tree: dict[str, Any] = yaml.safe_load((ROOT / "harnesses" / "definitions" / "pi.yaml").read_text())
    lean = list(PI_ARGUMENTS)
    command: list[Any] = tree["command"]
    place = next(n for n, part in enumerate(command) if part == "-p")
    tree |= {"name": HARNESS, "command": ["bash", "-c", SHELL, str(times), *command[:place], *lean, *command[place:]]}
    found = directory / "harnesses"
    found.mkdir()
    (found / f"{HARNESS}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return found


def _settings(stack: BenchStack) -> BusSettings:
    info = stack.stack.info
    return BusSettings(
        bootstrap=info.bootstrap, topic_prefix=info.topic_prefix, blob_url=stack.stack.settings.blobs, client_id="bench"
    )


def _specs(name: str, sessions: int) -> Iterable[TaskSpec]:
    for number in range(sessions // GROUP):
        yield TaskSpec.model_validate(
            {
                "task_id": f"{name}-{time.time_ns()}-{number}",
                "instruction": writes.instruction(number),
                "harness": {"name": HARNESS, "options": {"max_tokens": 48}},
                "evaluator": writes.evaluator(number),
                "num_samples": GROUP,
            }
        )


async def _run(bus: Bus, name: str, sessions: int) -> Batch:
    """Submit them all at once and wait until each is scored."""
    requests = [request_of(spec) for spec in _specs(name, sessions)]
    task_ids = {request.task_id for request in requests}
    scored: dict[str, ScoredTrajectory] = {}
    scored_at: dict[str, int] = {}
    since_ms = int(time.time() * 1000)
    await asyncio.gather(*(bus.publish(request) for request in requests))
    try:
        async with asyncio.timeout(WITHIN_S):
            async for delivery in bus.tail(["trajectory.scored"], start=since_ms):
                record = delivery.decode()
                if isinstance(record, ScoredTrajectory) and record.task_id in task_ids:
                    scored[record.session_id] = record
                    scored_at.setdefault(record.session_id, delivery.timestamp_ms)
                if len(scored) == sessions:
                    break
    except TimeoutError:
        raise BenchError(f"{len(scored)} of {sessions} sessions were scored within {WITHIN_S:.0f} s") from None
    bad = [
        (str(s.status), str(s.boundary), s.error, s.reward, s.trajectory.counts if s.trajectory else None)
        for s in scored.values()
        if s.status is not Status.COMPLETED
        or s.reward != 1.0
        or s.trajectory is None
        or s.trajectory.counts.trained != 2
    ]
    if bad:
        raise BenchError(f"{len(bad)} sessions didn't go as they should, for example {bad[0]}")
    facts = [
        event
        async for d in bus.tail(["rollout.sessions"], start=since_ms, until_end=True)
        if isinstance(event := d.decode(), SessionEvent) and event.session_id in scored
    ]
    return Batch(scored, scored_at, facts, since_ms)


def _since(before: Mapping[str, CpuTime], pids: Mapping[str, int]) -> dict[str, CpuTime]:
    return {name: now - before[name] for name, now in cpu_times(pids).items()}


def _total(spent: CpuTime) -> float:
    return spent.own_s + spent.reaped_s
