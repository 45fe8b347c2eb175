"""A real Docker engine of the tests' own: its daemon on its own socket and directories, an image made from Debian's packages.

Needs root, and Debian's `docker.io` and `debootstrap`. It makes no bridge and no firewall rule, and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import requests

from harnesses import default_cache

_REPOSITORY, _TAG = "polynya-test", "1"
IMAGE = f"{_REPOSITORY}:{_TAG}"
_PREFIX = "polynya-engine-"
_UP_S = 60.0
# It waits ten seconds for its containerd; what is left after this time is killed and unmounted.
_DOWN_S = 3.0
_MADE_S = 600.0
# Beside what minbase has: an interpreter, for repositories whose tests run inside.
_PACKAGES = "python3-minimal,libpython3-stdlib"
_USELESS = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


class NoEngine(Exception):  # noqa: N818  # a verdict, not an error of ours
    """This machine can't have an engine of the tests' own; the text says what is missing."""


@contextmanager
def running_engine() -> Iterator[str]:
    """The address of an engine with the image `IMAGE`; gone at the end, with everything that it made."""
    if os.geteuid() != 0:
        raise NoEngine("only root can start a Docker engine")
    for program in ("dockerd", "debootstrap", "setpriv"):
        if shutil.which(program) is None:
            raise NoEngine(f"{program} is missing; apt-get install docker.io debootstrap util-linux")
    archive = image_archive()
    _tidy_stale()
    place = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = (place / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    host = f"unix://{place}/sock"
    try:
        with (place / "log").open("wb") as log:
            daemon = subprocess.Popen(
                [
                    # The daemon ends with the tests, however they end.
                    *("setpriv", "--pdeathsig", "TERM", "dockerd"),
                    *("--data-root", place / "data", "--exec-root", place / "exec", "--pidfile", place / "pid"),
                    *(
                        "--host",
                        host,
                        "--bridge",
                        "none",
                        "--iptables=false",
                        "--ip6tables=false",
                        "--log-level",
                        "warn",
                    ),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            client = _connected(host, daemon, place / "log")
            try:
                client.import_image(str(archive), repository=_REPOSITORY, tag=_TAG)
            finally:
                client.close()
            yield host
        finally:
            _end(daemon)
    finally:
        _tidy(place)
        lock.close()
    assert leftovers(host) == []


def leftovers(host: str) -> list[str]:
    """What a stopped engine left on this machine: mounts, processes, directories."""
    place = str(Path(host.removeprefix("unix://")).parent)
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if place in line]
    return mounts + [str(pid) for pid in _processes(place)] + ([place] if Path(place).exists() else [])


def image_archive() -> Path:
    """The image's root file system as an archive, made once and kept in the cache."""
    suite, mirror = _apt_source()
    target = default_cache() / "images" / f"{IMAGE.replace(':', '-')}-{suite}.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        root = Path(tempfile.mkdtemp(prefix="polynya-image-"))
        try:
            argv = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, str(root), *mirror]
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_MADE_S, env=_environment(), check=False
            )
            if done.returncode:
                raise NoEngine(f"debootstrap failed: {(done.stdout + done.stderr)[-500:]}")
            for useless in _USELESS:
                shutil.rmtree(root / useless, ignore_errors=True)
            staging = target.with_suffix(".part")
            subprocess.run(["tar", "-C", root, "-cf", staging, "."], check=True, timeout=_MADE_S)
            staging.rename(target)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return target


def _apt_source() -> tuple[str, list[str]]:
    """The release that this machine runs, and where it gets it from."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    suite = release.get("VERSION_CODENAME", "").strip('"')
    argv = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"]
    try:
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoEngine(f"this isn't a Debian machine: {error}") from error
    sources = [line.split(" ", 1)[1] for line in said.splitlines() if line.split(" ", 1)[0] == suite]
    return suite, sources[:1]


def _environment() -> dict[str, str]:
    """The proxy that apt uses, where it does, for debootstrap's downloads."""
    environment = dict(os.environ)
    said = subprocess.run(
        ["apt-config", "shell", "PROXY", "Acquire::http::Proxy"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout.strip()
    if said.startswith("PROXY='"):
        environment.setdefault("http_proxy", said[7:-1])
    return environment


def _connected(host: str, daemon: subprocess.Popen[bytes], log: Path) -> docker.APIClient:
    end = time.monotonic() + _UP_S
    while True:
        # The client asks for the version as it is made, and leaves a socket open when nothing answers.
        if Path(host.removeprefix("unix://")).exists():
            with contextlib.suppress(requests.RequestException, docker.errors.DockerException):
                return docker.APIClient(base_url=host, timeout=60)
        if daemon.poll() is not None or time.monotonic() > end:
            raise NoEngine(f"dockerd didn't start: {log.read_text()[-800:]}")
        time.sleep(0.1)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(_DOWN_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _tidy_stale() -> None:
    """Removes what engines left whose tests were killed: nobody holds their locks any more."""
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (place / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _tidy(place)


def _tidy(place: Path) -> None:
    for pid in _processes(str(place)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(place) in line]
    for mount in sorted(mounts, reverse=True):
        subprocess.run(["umount", "-l", mount], check=False, timeout=20)
    shutil.rmtree(place, ignore_errors=True)
    for group in Path("/sys/fs/cgroup").glob("*/docker"):
        # Of an engine with containers it isn't empty, and stays.
        with contextlib.suppress(OSError):
            group.rmdir()


def _processes(place: str) -> list[int]:
    """Processes that were started for this engine: they name its directories."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if place.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    print(f"docker-engine: the image's files are in {image_archive()}")
