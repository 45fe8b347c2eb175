"""What a stopped fleet has left behind: processes that bear its directory, directories of sessions, sockets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def find_leftovers(root: Path, *, proc: Path = Path("/proc")) -> list[str]:
    """One line per thing that is left of a fleet whose directory is `root`."""
    return [*_processes(root, proc), *_directories(root), *_sockets(root)]


def _processes(root: Path, proc: Path) -> Iterator[str]:
    mark = os.fsencode(root)
    for entry in sorted(proc.iterdir()):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            is_zombie = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
            command, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            place = os.fsencode((entry / "cwd").readlink())
        except OSError:
            continue  # it ended while we looked, or isn't ours
        if not is_zombie and (mark in command or mark in environ or place.startswith(mark)):
            shown = command.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
            yield f"process {entry.name} is left: {shown}"


def _directories(root: Path) -> Iterator[str]:
    for runtimes in sorted(root.glob("*/worker/runtimes")):
        for directory in sorted(runtimes.iterdir()):
            yield f"a session's directory is left: {directory}"


def _sockets(root: Path) -> Iterator[str]:
    for place, _, names in os.walk(root):
        for name in names:
            path = Path(place) / name
            if stat.S_ISSOCK(path.lstat().st_mode):
                yield f"a socket is left: {path}"
