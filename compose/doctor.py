"""What a stack needs on this machine, checked one by one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from compose.runtime_info import running_info
from compose.settings import StackSettings, default_cache

# A stack with Kafka, a tiny model and one harness needs about this much for itself and its data.
DISK_NEEDED_GB = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and what to do when it isn't enough."""

    name: str
    is_ok: bool
    found: str
    hint: str = ""
    is_needed: bool = True


def _first_line(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ((done.stdout or done.stderr).splitlines() or [""])[0].strip()


def check_all(settings: StackSettings) -> list[Finding]:
    """All findings, in the order in which a stack needs the things."""
    return [_python(), _java(settings), _maven(settings), _node(), _disk(settings), _harnesses(), _stack(settings)]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer")


def _java(settings: StackSettings) -> Finding:
    from compose.kafka import KafkaUnavailable
    from compose.kafka.jars import find_java

    needed = not settings.bootstrap
    try:
        java = find_java()
    except KafkaUnavailable as exc:
        return Finding("Java 17+", False, str(exc).splitlines()[0], "apt-get install openjdk-17-jre-headless", needed)
    return Finding("Java 17+", True, f"{java} ({_first_line(java, '-version')})", is_needed=needed)


def _maven(settings: StackSettings) -> Finding:
    jars = list((default_cache() / "kafka").glob("*")) if (default_cache() / "kafka").exists() else []
    found = shutil.which("mvn")
    text = found or ("not needed: Kafka's jars are in the cache" if jars else "not found")
    return Finding("Maven", bool(found or jars), text, "apt-get install maven", not settings.bootstrap)


def _node() -> Finding:
    version = _first_line("node", "--version")
    is_ok = version.startswith("v") and int(version[1:].split(".")[0]) >= 20
    return Finding("Node 20+", is_ok, version or "not found", "install Node 20 or newer", is_needed=False)


def _disk(settings: StackSettings) -> Finding:
    where = settings.state_dir
    while not where.exists():
        where = where.parent
    free_gb = shutil.disk_usage(where).free / 1e9
    is_ok = free_gb >= DISK_NEEDED_GB and os.access(where, os.W_OK)
    return Finding("disk", is_ok, f"{free_gb:.1f} GB free at {where}", f"free at least {DISK_NEEDED_GB:g} GB there")


def _harnesses() -> Finding:
    from harnesses import find_installed, list_harnesses

    missing = [a.name for a in list_harnesses() if a.install is not None and find_installed(a) is None]
    text = "all installed" if not missing else f"not installed: {', '.join(missing)}"
    return Finding("harnesses", not missing, text, f"polynya harness install {' '.join(missing)}", is_needed=False)


def _stack(settings: StackSettings) -> Finding:
    info = running_info(settings)
    text = f"runs in {settings.state_dir} (pid {info.supervisor_pid})" if info else f"none in {settings.state_dir}"
    return Finding("stack", info is not None and info.is_ready, text, "polynya up --detach", is_needed=False)
