"""The process table: ours are in it with their parents, the kernel's own aren't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stage_workers.runtimes.processes import Family, members, process_table


def test_the_table_has_programs_and_no_kernel_threads() -> None:
    """We, our child and its parent; nothing that has no program."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        table = process_table()
        assert table[child.pid].ppid == os.getpid()
        assert table[child.pid].sid == child.pid
        assert not table[child.pid].is_zombie
        assert table[os.getpid()].ppid == os.getppid()
        if "kthreadd" in Path("/proc/2/comm").read_text():  # not where we see our own container's processes only
            assert [pid for pid, process in table.items() if 2 in (pid, process.ppid)] == []
        assert members(Family(leaders=frozenset({child.pid}))) == {child.pid}
    finally:
        child.kill()
        child.wait(10)


def test_a_marker_is_found_whole() -> None:
    """`one.1` isn't `one.10`; a longer mark below it is."""
    env = {**os.environ, "POLYNYA_RUNTIME": "w/one.10/3"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)
    try:
        assert members(Family(marker=b"POLYNYA_RUNTIME=w/one.1")) == set()
        assert members(Family(marker=b"POLYNYA_RUNTIME=w/one.10")) == {child.pid}
    finally:
        child.communicate(b"\n", 10)
