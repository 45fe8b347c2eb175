"""One broker process: spawned, recognised again by a later command, signalled, and ended when its owner dies."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

_MARK = "-Dpolynya.node="
"""A JVM property that says whose broker this is: it tells our process from another that got its pid later."""

# Waits for the end of its input (its owner's death), then ends the broker if the pid is still that broker.
_GUARD = r"""
read -r _
same() { tr '\0' '\n' < "/proc/$1/cmdline" 2>/dev/null | grep -qxF -- "$2"; }
same "$1" "$2" || exit 0
kill -CONT "$1"; kill -TERM "$1"
for _ in 1 2 3 4 5 6 7 8 9 10; do same "$1" "$2" || exit 0; sleep 1; done
same "$1" "$2" && kill -KILL "$1"
"""

_DETACHED: Final[list[subprocess.Popen[bytes]]] = []
"""Brokers that outlive the object that started them: forgetting a live child is an error to Python."""


@atexit.register
def _let_detached_live() -> None:
    """They are meant to go on when we end; without a return code Python complains of each."""
    for child in _DETACHED:
        if child.poll() is None:
            child.returncode = 0


class BrokerProcess:
    """The Java process of one node. `node_dir` holds its pid file, its log and its properties."""

    def __init__(self, node_dir: Path) -> None:
        self._dir = node_dir
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where the broker writes what it has to say."""
        return self._dir / "server.log"

    def spawn(self, java: str, jars: Path, *, heap_mb: int, detach: bool) -> None:
        """Start the broker from `server.properties`. Unless `detach`ed, it ends when this process does, however it ends."""
        command = [
            java,
            f"-Xmx{heap_mb}m",
            "-Xms64m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
        ]
        command += [f"{_MARK}{self._dir}", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        command += ["-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ"]
        command += ["-cp", f"{jars}/*", "kafka.Kafka", str(self._dir / "server.properties")]
        self._rotate_log()
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C on our terminal must not reach it before the clients have left.
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._dir, start_new_session=True
            )
        self._pid_file.write_text(f"{self._child.pid}\n")
        if detach:
            _DETACHED.append(self._child)
        else:
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "guard", str(self._child.pid), f"{_MARK}{self._dir}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """The pid while the broker lives, else None."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if f"{_MARK}{self._dir}" in _arguments(pid) else None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a broker that is gone already is fine."""
        pid = self.pid
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return

    def wait_gone(self, *, timeout_s: float) -> bool:
        """Wait until the broker has ended; False when it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        self._forget()
        return True

    def end_of_log(self, *, lines: int = 15) -> str:
        """The last lines of the broker's log, for an error message."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    @property
    def _pid_file(self) -> Path:
        return self._dir / "pid"

    def _forget(self) -> None:
        self._pid_file.unlink(missing_ok=True)
        if self._child is not None:
            self._child.wait()
            self._child = None
        if self._guard is not None:
            # Closing its input first would make it look for the broker; it has nothing left to do.
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _rotate_log(self, *, limit_bytes: int = 16 * 1024 * 1024) -> None:
        if self.log.exists() and self.log.stat().st_size > limit_bytes:
            self.log.replace(self.log.with_suffix(".log.1"))


def _arguments(pid: int) -> list[str]:
    """The command line of a process; empty for a dead one or a zombie."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            return []
    shown = subprocess.run(
        ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
    )
    return shown.stdout.split()
