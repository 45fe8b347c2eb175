"""Grading functions for the tests, as a person would write them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from stage_workers.grading_process import GradedSession


def one(session: GradedSession, *, bonus: float = 0.0) -> float:
    """One number."""
    print("this is no answer")
    return len(session.trajectory.traces) + bonus


async def named(session: GradedSession) -> dict[str, Any]:
    """Numbers by name, one of them for each trace; asynchronous."""
    return {"reward": session.status == "completed", "per_trace": [0.5] * len(session.trajectory.traces)}


def each(session: GradedSession) -> list[float]:
    """One for each trace."""
    return [float(trace.index) for trace in session.trajectory.traces]


def raising(_: GradedSession) -> float:
    """A function with a fault."""
    raise KeyError("nothing here")


def hanging(_: GradedSession) -> float:
    """A function that doesn't end."""
    time.sleep(60)
    return 0.0


def with_a_program(session: GradedSession, *, note: str = "") -> float:
    """Starts a program that prints, and, where it is told a file, one that stays and writes its number there; then it hangs."""
    subprocess.run(["/bin/sh", "-c", "echo '{\"answer\": 9}'"], check=True)
    if note:
        left = subprocess.Popen(["/bin/sleep", "60"])
        Path(note).write_text(str(left.pid), encoding="ascii")
        time.sleep(60)
    return len(session.trajectory.traces)


def words(_: GradedSession) -> str:
    """A function that answers something else."""
    return "good"
