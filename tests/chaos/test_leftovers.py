"""What a fleet has left behind is found."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.chaos.leftovers import find_leftovers


def test_nothing_is_left_of_nothing(tmp_path: Path) -> None:
    """Logs and data may stay: they are what a person looks into."""
    (tmp_path / "worker-1" / "worker" / "runtimes").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    assert find_leftovers(tmp_path) == []


def test_processes_directories_and_sockets_are_found(tmp_path: Path) -> None:
    """A process that bears the fleet's directory, wherever it stands; a session's directory; a socket."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    by_environment = {"HOME": str(tmp_path / "x")}
    (tmp_path / "worker-1" / "worker" / "runtimes" / "s-1").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
        ways: list[dict[str, object]] = [{"cwd": tmp_path}, {"env": by_environment}]
        children = [
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **way)  # type: ignore[call-overload]
            for way in ways
        ]
        try:
            for child in children:
                child.stdout.readline()
            found = find_leftovers(tmp_path)
        finally:
            for child in children:
                child.communicate()
    assert {f"process {child.pid} is left" for child in children} <= {f.partition(":")[0] for f in found}
    assert any("runtimes/s-1" in f for f in found)
    assert any("socket" in f for f in found)
    assert len(found) == 4
