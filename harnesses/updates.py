"""What the registries have that is newer than our pins: asked of the package managers themselves, as they are set up here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass

from harnesses.adapter import Adapter, Package
from harnesses.definition import parse_version
from harnesses.errors import HarnessError, InstallError, RegistryUnreachableError
from harnesses.installers import is_unreachable
from harnesses.npm import system_npm
from harnesses.pypi import find_uv


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A harness' pin and the newest version that its registry offers."""

    name: str
    package: str
    pinned: str
    newest: str

    @property
    def is_newer(self) -> bool:
        """Whether the registry has something newer than the pin."""
        try:
            return parse_version(self.newest) > parse_version(self.pinned)
        except HarnessError:
            return self.newest != self.pinned


def newest(adapter: Adapter, timeout_s: float = 60.0) -> Update | None:
    """What is newest of a harness, or None for one that installs nothing. Blocks.

    Raises:
        RegistryUnreachableError: the registry couldn't be reached.
        InstallError: the package manager is missing or failed.
    """
    package = adapter.install
    if package is None:
        return None
    version = _npm(package, timeout_s) if package.registry == "npm" else _pypi(package, timeout_s)
    return Update(name=adapter.name, package=package.package, pinned=package.version, newest=version)


def _npm(package: Package, timeout_s: float) -> str:
    argv = [str(system_npm()), "view", package.package, "version", "--json", "--fetch-retries=1"]
    said = _asked(argv, None, "npm", timeout_s)
    try:
        answer = json.loads(said or "null")
    except json.JSONDecodeError as error:
        raise InstallError(f"npm said something else than a version of {package.package}: {said[:300]}") from error
    if not isinstance(answer, str) or not answer:
        raise InstallError(f"npm offers no version of {package.package}")
    return answer


def _pypi(package: Package, timeout_s: float) -> str:
    uv = find_uv()
    if uv is None:
        argv = [sys.executable, "-m", "pip", "index", "versions", package.package]
        found = re.search(r"\(([^)]+)\)", _asked(argv, None, "PyPI", timeout_s))
    else:
        # Resolving the bare name, without what it needs, gives the newest version that this Python can have.
        argv = [uv, "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "-"]
        found = re.search(r"==([^\s;]+)", _asked(argv, package.package, "PyPI", timeout_s))
    if found is None:
        raise InstallError(f"PyPI offers no version of {package.package} for this Python")
    return found.group(1)


def _asked(argv: list[str], given: str | None, registry: str, timeout_s: float) -> str:
    try:
        done = subprocess.run(argv, input=given or "", capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise RegistryUnreachableError(f"the {registry} registry didn't answer within {timeout_s:.0f} s") from error
    except OSError as error:
        raise InstallError(f"{argv[0]} can't be run: {error}") from error
    if done.returncode == 0:
        return done.stdout.strip()
    said = (done.stderr or done.stdout).strip()
    if is_unreachable(said):
        raise RegistryUnreachableError(f"the {registry} registry can't be reached: {said.splitlines()[0][:200]}")
    raise InstallError(f"{argv[0]} failed: {said[-300:]}")
