"""A whole stack, as `polynya up` starts it, for the measurements that need one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from compose.runtime_info import load_info
from schemas.records import ScoredTrajectory
from tests.bench.errors import BenchError
from tests.bench.memory import weigh
from tests.bench.processes import child
from tests.e2e.stack import Stack

POLICY = "scripted:tests.bench.policy:reply"
UP_WITHIN_S = 240.0
STOP_WITHIN_S = 60.0


@dataclass(slots=True)
class BenchStack:
    """A running stack, what its parts weighed when it was fresh, and how many tokens its sessions have sampled."""

    stack: Stack
    supervisor_pid: int
    weights_at_start: dict[str, int] = field(default_factory=dict)
    sampled_tokens: int = 0

    @property
    def pids(self) -> dict[str, int]:
        """The parts' processes, the supervisor's too."""
        return {"supervisor": self.supervisor_pid, **self.stack.info.pids}

    @property
    def kafka_dir(self) -> Path:
        """Where the stack's Kafka keeps its data."""
        return self.stack.state_dir / "kafka"

    async def run_sessions(self, instruction: str, *, sessions: int, turns: int) -> int:
        """Run a task with the test agent to its end; the tokens that it sampled. BenchError unless all went well."""
        task_id = f"bench-{time.time_ns()}"
        task = self.stack.agent_task(f"{instruction} turns={turns}", task_id=task_id, num_samples=sessions)
        await asyncio.to_thread(self.stack.submit, task, wait=True)
        results: list[ScoredTrajectory] = await self.stack.results(task_id)
        trajectories = [r.trajectory for r in results if r.trajectory is not None]
        if len(trajectories) != sessions or any(t.counts.trained != turns + 1 for t in trajectories):
            went = [(str(r.status), r.error, r.trajectory.counts if r.trajectory else None) for r in results]
            raise BenchError(f"the sessions didn't go as they should: {went}")
        tokens = sum(t.counts.sampled_tokens for t in trajectories)
        self.sampled_tokens += tokens
        return tokens


@asynccontextmanager
async def running_stack(
    work_dir: Path, *, policy: str = POLICY, env: Mapping[str, str] | None = None
) -> AsyncIterator[BenchStack]:
    """A stack with a scripted policy, in the foreground of a child: it ends with the bench, whatever ends that. `env` adds settings."""
    stack = Stack(work_dir / "state")
    argv = ["-m", "compose.cli.main", "up", "--engine", policy, "--state-dir", str(stack.state_dir)]
    with child("stack", argv, work_dir, stop_within_s=STOP_WITHIN_S, env=env) as supervisor:
        deadline = time.monotonic() + UP_WITHIN_S
        while (info := load_info(stack.settings)) is None or not info.is_ready:
            supervisor.require_alive()
            if time.monotonic() > deadline:
                last = f"{supervisor.end_of_log()}\n{stack.logs()}"
                raise BenchError(f"the stack wasn't up after {UP_WITHIN_S:.0f} s:\n{last}")
            await asyncio.sleep(0.1)
        started = BenchStack(stack, supervisor.pid)
        started.weights_at_start = weigh(started.pids)
        yield started
