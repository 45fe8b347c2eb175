"""A local stack for tests: started with the project's own command, hurt by pid, read through the bus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus import Bus, BusSettings, connect
from compose.runtime_info import StackInfo, is_alive, load_info, log_file
from compose.settings import StackSettings
from schemas.records import Record, ScoredTrajectory, SessionEvent

ROOT = Path(__file__).parents[2]
POLICY = "scripted:tests.e2e.policy:reply"
AGENT = ROOT / "tests" / "e2e" / "agent.py"


@dataclass(slots=True)
class Stack:
    """One stack in its own state directory; `env` adds settings."""

    state_dir: Path
    engine_url: str = POLICY
    env: Mapping[str, str] = field(default_factory=dict)
    journals: Path = Path()

    def __post_init__(self) -> None:
        """Make the directory for the agents' journals."""
        self.journals = self.state_dir / "journals"
        self.journals.mkdir(parents=True, exist_ok=True)

    @property
    def settings(self) -> StackSettings:
        """The settings that commands of this stack see."""
        return StackSettings(state_dir=self.state_dir)

    def cli(
        self, *args: str, stdin: str | None = None, check: bool = True, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """Run `polynya` with this stack's environment."""
        env = {**os.environ, "POLYNYA_STATE_DIR": str(self.state_dir), **self.env, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "compose.cli.main", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=env,
            cwd=ROOT,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"polynya {' '.join(args)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}\n{self.logs()}"
            )
        return done

    def up(self, *args: str) -> None:
        """Start the stack and wait until it is ready."""
        self.cli("up", "--detach", "--engine", self.engine_url, *args, timeout_s=400)

    def down(self) -> None:
        """Stop it; raises when a process stays."""
        self.cli("down")

    @contextmanager
    def running(self) -> Iterator[Stack]:
        """Up for the block; afterwards no process of it is left."""
        self.up()
        pids = dict(self.info.pids)
        try:
            yield self
        finally:
            pids |= self.info.pids
            self.down()
            assert self.leftovers(pids) == []

    @property
    def info(self) -> StackInfo:
        """The stack's facts now."""
        info = load_info(self.settings)
        assert info is not None
        return info

    def kill(self, part: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a part's process a signal; its pid."""
        pid = self.info.pids[part]
        os.kill(pid, number)
        return pid

    def kill_and_await_restart(self, part: str, within_s: float = 60.0) -> None:
        """SIGKILL a part and wait until its successor runs and is ready."""
        ready = self.state_dir / "run" / f"{part}.json"
        old = self.kill(part)
        self.until(lambda: self.info.pids.get(part, old) != old, within_s, f"{part} restarted")
        self.until(ready.exists, within_s, f"{part} ready again")

    def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for a condition; AssertionError with the logs when it doesn't come true."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s} s: {what}\n{self.logs()}")
            time.sleep(0.05)

    def logs(self, lines: int = 15) -> str:
        """The ends of all parts' logs."""
        texts = []
        for path in sorted((self.state_dir / "logs").glob("*.log")):
            texts.append(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:]))
        return "\n".join(texts)

    def log(self, part: str) -> str:
        """One part's log."""
        return log_file(self.state_dir, part).read_text(errors="replace")

    def journal(self) -> list[dict[str, Any]]:
        """Every finished answer that any agent received."""
        return [json.loads(line) for path in sorted(self.journals.glob("*")) for line in path.read_text().splitlines()]

    def agent_task(self, instruction: str, **fields: Any) -> dict[str, Any]:
        """A task file that runs the test agent."""
        command = f"{sys.executable} {AGENT} {{base_url_openai_chat}} {{secret}} {self.journals}/$$ {{instruction}}"
        return {"instruction": instruction, "harness": {"name": "shell", "options": {"command": command}}, **fields}

    def submit(self, *tasks: dict[str, Any], wait: bool = False) -> str:
        """Submit tasks; what the command printed (JSON)."""
        extra = ["--wait", "--timeout-s", "200"] if wait else []
        return self.cli("submit", "-", "--json", *extra, stdin=json.dumps(list(tasks))).stdout

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """A started bus on this stack's Kafka."""
        settings = BusSettings(
            bootstrap=self.info.bootstrap, topic_prefix=self.info.topic_prefix, blob_url=self.settings.blobs
        )
        async with connect(settings) as bus:
            yield bus

    async def read(self, topic: str) -> list[Record]:
        """All decoded records of a topic now."""
        async with self.bus() as bus:
            return [d.decode() async for d in bus.tail([topic], start="earliest", until_end=True) if d.value]

    async def facts(self, task_id: str) -> list[SessionEvent]:
        """The facts of a task's sessions, by partition and offset."""
        told = [e for e in await self.read("rollout.sessions") if isinstance(e, SessionEvent)]
        sessions = {e.session_id for e in told if e.task_id == task_id}  # not every fact names its task
        return [e for e in told if e.session_id in sessions]

    async def results(self, task_id: str) -> list[ScoredTrajectory]:
        """The scored trajectories of a task, repeats included."""
        return [
            s for s in await self.read("trajectory.scored") if isinstance(s, ScoredTrajectory) and s.task_id == task_id
        ]

    def leftovers(self, pids: Mapping[str, int]) -> list[str]:
        """Which of these processes still run."""
        return [name for name, pid in pids.items() if is_alive(pid)]
