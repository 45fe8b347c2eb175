"""Python harnesses: each in a virtual environment of its own, made by uv where there is one, else by the standard library and pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from harnesses.adapter import Package, Version
from harnesses.definition import parse_version
from harnesses.errors import HarnessError, InstallError
from harnesses.installers import run_installer

ENVIRONMENT = "venv"
# Newest first: asked for only when the Python that runs us is too old for a harness.
_OTHER_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")


def pypi_install(package: Package, place: Path, timeout_s: float) -> None:
    """Installs a package into `<place>/venv`.

    Raises:
        InstallError: no Python is new enough, or uv or pip failed.
    """
    python = find_python(package.python_min)
    environment = place / ENVIRONMENT
    requirement = f"{package.package}=={package.version}"
    uv = find_uv()
    if uv is None:
        run_installer([python, "-m", "venv", str(environment)], cwd=place, timeout_s=timeout_s, registry="PyPI")
        argv = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement]
    else:
        run_installer(
            [uv, "venv", "--quiet", "--python", python, str(environment)],
            cwd=place,
            timeout_s=timeout_s,
            registry="PyPI",
        )
        argv = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(environment / "bin" / "python"),
            requirement,
        ]
    run_installer(argv, cwd=place, timeout_s=timeout_s, registry="PyPI")


def find_uv() -> str | None:
    """The uv beside our own Python, or on the PATH."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def find_python(least: Version | None) -> str:
    """An interpreter that is new enough: our own if it is.

    Raises:
        InstallError: the machine has none.
    """
    if least is None or sys.version_info[:3] >= least:
        return sys.executable
    for name in _OTHER_PYTHONS:
        program = shutil.which(name)
        if program is not None and _version_of(program) >= least:
            return program
    raise InstallError(f"it needs Python {'.'.join(map(str, least))} or newer, and none is on the PATH; install one")


def _version_of(program: str) -> Version:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
        return parse_version(said.split()[-1])
    except (OSError, subprocess.SubprocessError, HarnessError, IndexError):
        return (0, 0, 0)


def installed_version(place: Path, package: str) -> str:
    """The version of a package as it stands in the environment under a place, or ""."""
    wanted = package.lower().replace("-", "_").replace(".", "_")
    for info in (place / ENVIRONMENT).glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        if name.lower().replace(".", "_").replace("-", "_") == wanted:
            return version
    return ""
