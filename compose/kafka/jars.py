"""The broker's jars: resolved once with Maven into a cache that every checkout on the machine shares."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compose.kafka.errors import KafkaUnavailable

POM = Path(__file__).with_name("pom.xml")
"""The list of artifacts; its digest names the cache entry, so a changed version never meets old jars."""

MINIMUM_JAVA = 17
"""Kafka 4's brokers are compiled for it."""

RESOLVE_TIMEOUT_S = 600.0
"""A cold Maven repository over a slow line; a warm one takes four seconds."""


def default_cache_dir() -> Path:
    """`$POLYNYA_CACHE`, or `~/.cache/polynya`: what is downloaded once and may be deleted at any time."""
    chosen = os.environ.get("POLYNYA_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "polynya"


def find_java() -> str:
    """The `java` to run the broker with (`$JAVA_HOME` first); raises `KafkaUnavailable` when missing or too old."""
    home = os.environ.get("JAVA_HOME")
    candidate = str(Path(home) / "bin" / "java") if home else "java"
    java = shutil.which(candidate)
    if java is None:
        where = f"$JAVA_HOME points at {home}, which has no bin/java" if home else "there is no `java` on the PATH"
        raise KafkaUnavailable(
            f"Kafka needs Java {MINIMUM_JAVA} or later, and {where}. Install a JDK "
            "(Debian, Ubuntu: `apt-get install openjdk-17-jre-headless`), or point POLYNYA_BOOTSTRAP at a running Kafka."
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    # Java 8 and older call themselves 1.8.
    major = int(found.group(2) or 0) if found and found.group(1) == "1" else int(found.group(1)) if found else 0
    if major < MINIMUM_JAVA:
        first_line = said.splitlines()[0] if said else "nothing"
        raise KafkaUnavailable(
            f"Kafka needs Java {MINIMUM_JAVA} or later, but {java} says {first_line!r}. Install a newer JDK "
            "(`apt-get install openjdk-17-jre-headless`) or set JAVA_HOME to one."
        )
    return java


def resolve_jars(cache_dir: Path | None = None, *, pom: Path = POM, timeout_s: float = RESOLVE_TIMEOUT_S) -> Path:
    """The directory with the broker's jars, filled by Maven on first use.

    Safe with several processes at once: one resolves under a file lock, the others wait and find its result. The directory
    appears by an atomic rename, so an interrupted download leaves nothing that looks finished. Raises `KafkaUnavailable`.
    """
    root = (cache_dir or default_cache_dir()) / "kafka"
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    jars = root / digest
    if jars.is_dir():
        return jars
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f"{digest}.lock", timeout_s=timeout_s):
        if not jars.is_dir():
            _copy_dependencies(pom, jars, timeout_s=timeout_s)
    return jars


def _copy_dependencies(pom: Path, target: Path, *, timeout_s: float) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(
            "Kafka's jars aren't in the cache yet, and fetching them needs Maven: there is no `mvn` on the PATH. "
            "Install it (Debian, Ubuntu: `apt-get install maven`), or point POLYNYA_BOOTSTRAP at a running Kafka."
        )
    find_java()  # Maven's own message about a missing Java is worse
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "--batch-mode", "--no-transfer-progress", "--file", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={partial}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        shutil.rmtree(partial, ignore_errors=True)
        raise KafkaUnavailable(
            f"Maven didn't finish fetching Kafka's jars in {timeout_s:.0f} s. Check the network or the mirror in "
            "~/.m2/settings.xml, then try again: what it has fetched is kept."
        ) from late
    if done.returncode != 0 or not any(partial.glob("kafka_2.13-*.jar")):
        shutil.rmtree(partial, ignore_errors=True)
        tail = "\n".join(line for line in done.stdout.splitlines() if line.strip())[-2000:]
        raise KafkaUnavailable(
            f"Maven couldn't fetch Kafka's jars (exit code {done.returncode}). Check the network or the mirror in "
            f"~/.m2/settings.xml, then try again. The command was\n  {' '.join(command)}\nand it ended with\n{tail}"
        )
    partial.rename(target)


@contextmanager
def _locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock on `path`; another process may be downloading for minutes."""
    deadline = time.monotonic() + timeout_s
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise KafkaUnavailable(
                        f"Another process has been fetching Kafka's jars for {timeout_s:.0f} s ({path} is locked). "
                        "See what it waits for, or end it, and try again."
                    ) from None
                time.sleep(0.2)
        yield  # closing the file releases the lock
