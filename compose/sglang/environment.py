"""SGLang's own virtual environment in the cache: made once, resumed after a broken-off run, checked before it is used."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

from compose.settings import default_cache

Device: TypeAlias = Literal["cpu", "cuda"]

SGLANG_VERSION: Final = "0.5.23"
"""The release that everything here is checked with; the same stands in the dependency group `sglang`."""

INSTALL_LIMIT_S: Final = 3600.0
CHECK_LIMIT_S: Final = 300.0
NEEDED_BYTES: Final[dict[Device, int]] = {"cpu": 10 << 30, "cuda": 24 << 30}
"""Free disk: what is downloaded and what it becomes."""
DOWNLOAD: Final[dict[Device, str]] = {
    "cpu": "3.3 GB to download, 6.3 GB on disk, one or two minutes",
    "cuda": "about 6 GB to download, several minutes",
}
_PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
_HERE: Final = Path(__file__).parent
_STAND_INS: Final = "cpu_stand_ins.py"

Report: TypeAlias = Callable[[str], None]


class EnvironmentFailedError(RuntimeError):
    """SGLang can't be installed here; the message says why and what to type."""


def find_device() -> Device:
    """Whether this machine has an NVIDIA GPU that its driver can see."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if done.returncode == 0 and "GPU" in done.stdout else "cpu"


def environment_dir(device: Device, cache: Path | None = None) -> Path:
    """Where the environment for a device is."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (cache or default_cache()) / "engines" / f"sglang-{SGLANG_VERSION}-{device}-py{version}"


def ensure_environment(device: Device, report: Report, *, cache: Path | None = None) -> Path:
    """The Python of SGLang's environment for a device, made if it isn't there. Blocks for minutes the first time.

    One process makes it at a time; one that broke off goes on where it was, from the installer's own cache. Raises
    EnvironmentFailedError.
    """
    directory = environment_dir(device, cache)
    python = directory / "bin" / "python"
    stamp, wanted = directory / ".complete", _digest(device)
    if _is_complete(python, stamp, wanted):
        return python
    _check_machine(device, directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _alone(directory.with_name(f"{directory.name}.lock"), report):
        if _is_complete(python, stamp, wanted):  # somebody else was faster
            return python
        stamp.unlink(missing_ok=True)
        report(f"installing SGLang {SGLANG_VERSION} for {device} into {directory} ({DOWNLOAD[device]})")
        started = time.monotonic()
        if not python.exists():
            _run([sys.executable, "-m", "venv", str(directory)], "making the virtual environment", CHECK_LIMIT_S)
        _install(device, python)
        if device == "cpu":
            _add_stand_ins(python)
        _check(device, python)
        stamp.write_text(wanted)
        report(f"SGLang is installed ({time.monotonic() - started:.0f} s)")
    return python


def serving_environment(device: Device) -> dict[str, str]:
    """What a process in that environment needs to be told."""
    common = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if device == "cuda":
        return common
    # Without the first, SGLang takes its CUDA paths; one compute thread, since a tiny model gains nothing from more.
    return {**common, "SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _digest(device: Device) -> str:
    """Changes when anything does that the environment is made of."""
    parts = [SGLANG_VERSION, device, sys.version]
    if device == "cpu":
        parts += [(_HERE / name).read_text() for name in ("cpu_requirements.txt", _STAND_INS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_complete(python: Path, stamp: Path, wanted: str) -> bool:
    return python.exists() and stamp.exists() and stamp.read_text() == wanted


def _check_machine(device: Device, directory: Path) -> None:
    have = (sys.platform, platform.machine(), sys.version_info[:2])
    if have[:2] != ("linux", "x86_64") or have[2] not in _PYTHONS:
        raise EnvironmentFailedError(
            f"SGLang {SGLANG_VERSION} is checked on Linux x86_64 with Python 3.11 to 3.13, and this is {have[0]} {have[1]} with Python "
            f"{have[2][0]}.{have[2][1]}: run an SGLang server elsewhere and name it with `polynya up --engine-url URL`"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory.parent).free
    if free < NEEDED_BYTES[device]:
        raise EnvironmentFailedError(
            f"SGLang needs {NEEDED_BYTES[device] >> 30} GB of disk while it is installed, and {directory.parent} has {free >> 30} GB "
            "free: make room, or set POLYNYA_CACHE to a directory on another disk"
        )


def _install(device: Device, python: Path) -> None:
    wanted = (
        ["--no-deps", "-r", str(_HERE / "cpu_requirements.txt")] if device == "cpu" else [f"sglang=={SGLANG_VERSION}"]
    )
    # Bytecode is compiled now: the server starts several interpreters, and it halves the time until it answers.
    uv = _uv()
    if uv is not None:
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        command = [uv, "pip", "install", *quiet, "--python", str(python), "--compile-bytecode", *wanted]
    else:
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *wanted]
    _run(command, "downloading and installing SGLang", INSTALL_LIMIT_S, is_shown=sys.stderr.isatty())


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def _add_stand_ins(python: Path) -> None:
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(_run([str(python), "-c", code], "asking where packages go", CHECK_LIMIT_S).strip())
    name = "polynya_cpu_stand_ins"
    shutil.copyfile(_HERE / _STAND_INS, site / f"{name}.py")
    (site / f"{name}.pth").write_text(f"import {name}\n")


def _check(device: Device, python: Path) -> None:
    """What the server itself begins with: a broken set of packages fails here, and not when it is started."""
    code = "import sglang.srt.entrypoints.http_server"
    _run([str(python), "-W", "ignore", "-c", code], "importing SGLang's server", CHECK_LIMIT_S, device=device)


def _run(command: list[str], what: str, limit_s: float, *, is_shown: bool = False, device: Device | None = None) -> str:
    env = {**os.environ, **(serving_environment(device) if device else {})}
    try:
        done = subprocess.run(
            command, env=env, stdout=None if is_shown else subprocess.PIPE, stderr=None if is_shown else subprocess.STDOUT,
            text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailedError(
            f"{what} took longer than {limit_s:.0f} s: run the same command again, it goes on where it was"
        ) from error
    except OSError as error:
        raise EnvironmentFailedError(f"{what} failed: {error}") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout or "").strip().splitlines()[-8:])
        raise EnvironmentFailedError(
            f"{what} failed ({done.returncode}): {' '.join(command)}\n{tail}\n"
            "check that the package index is reachable (pip config list), then run the same command again: it goes on where it was"
        )
    return done.stdout or ""


@contextmanager
def _alone(path: Path, report: Report) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is installing SGLang: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
