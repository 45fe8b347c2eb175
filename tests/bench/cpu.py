"""CPU seconds of processes and of the children that they have reaped, from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU seconds so far, user and system together: of a process itself (all threads), and of what it has reaped."""

    own_s: float
    reaped_s: float

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        """What was used since `earlier`."""
        return CpuTime(self.own_s - earlier.own_s, self.reaped_s - earlier.reaped_s)


def cpu_time(pid: int) -> CpuTime:
    """Of a process that runs; ticks of 10 ms, so only differences over many sessions mean something. Raises OSError."""
    # The command's name may hold spaces and brackets: the numbers begin after the last one.
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    user, system, reaped_user, reaped_system = (int(field) / _TICKS_PER_S for field in fields[11:15])
    return CpuTime(user + system, reaped_user + reaped_system)


def cpu_times(pids: Mapping[str, int]) -> dict[str, CpuTime]:
    """Of several processes by name."""
    return {name: cpu_time(pid) for name, pid in pids.items()}


def shell_times(text: str) -> tuple[float, float]:
    """Seconds of (a shell itself, its children) by what `times` of bash printed: two lines of `0m0.001s 0m0.002s`."""
    own, children = (sum(_seconds(word) for word in line.split()) for line in text.strip().splitlines()[:2])
    return own, children


def _seconds(word: str) -> float:
    minutes, _, rest = word.partition("m")
    return int(minutes) * 60 + float(rest.rstrip("s"))
