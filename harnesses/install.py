"""Installing harnesses once into a cache: exact versions, whole or not at all, one process at a time.

Layout: `<cache>/harnesses/<name>/<version>/` and `<cache>/node/<version>/`, each an npm prefix (or the home of a Python environment)
with a file `installed.json` that was written last: what has none is no installation. An npm prefix grows in a staging directory
beside its place and is renamed into it; a Python environment can't be moved and grows where it stays. A lock file keeps two processes
from doing it twice.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from harnesses.adapter import Adapter, Package, Version
from harnesses.errors import InstallError
from harnesses.installers import with_retries
from harnesses.npm import NODE, npm_install, package_version, system_node, system_npm
from harnesses.pypi import ENVIRONMENT, installed_version, pypi_install

Progress = Callable[[str], None]
"""Takes one line that says what is being done."""

CACHE_VARIABLE = "POLYNYA_CACHE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Where an installed harness stands: its executable, and the directories its launch puts in front of PATH."""

    executable: str = ""
    path_dirs: tuple[str, ...] = ()


def default_cache() -> Path:
    """`$POLYNYA_CACHE`, or `~/.cache/polynya`."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/polynya").expanduser()


def find_installed(adapter: Adapter, cache: Path | None = None) -> Installed | None:
    """The installation of this adapter's exact version, or None. A harness that installs nothing is always there."""
    if adapter.install is None:
        return Installed()
    place = _place(adapter, cache or default_cache())
    if not _is_complete(place, adapter.install):
        return None
    if adapter.install.registry == "pypi":
        return Installed(executable=str(place / ENVIRONMENT / "bin" / adapter.install.bin))
    node_dir = str(orjson.loads((place / "installed.json").read_bytes()).get("node_dir", ""))
    if node_dir and not (Path(node_dir) / "node").exists():
        return None
    bin_dir = place / "node_modules" / ".bin"
    return Installed(
        executable=str(bin_dir / adapter.install.bin),
        path_dirs=(node_dir,) if node_dir else (),
    )


def ensure_installed(
    adapter: Adapter, cache: Path | None = None, progress: Progress = lambda _line: None, *, timeout_s: float = 600.0
) -> Installed:
    """The installation of this adapter's exact version, made now if need be. Blocks (run it in a thread).

    Raises:
        InstallError: npm is missing, failed, took longer than `timeout_s`, or brought another version than the pin.
    """
    root = cache or default_cache()
    found = find_installed(adapter, root)
    if found is not None or adapter.install is None:
        return found or Installed()
    place = _place(adapter, root)
    with _locked(place, progress):
        found = find_installed(adapter, root)
        if found is not None:
            return found
        with_retries(lambda: _install(adapter, place, root, progress, timeout_s), progress)
        progress(f"installed {adapter.title} {adapter.install.version}")
    found = find_installed(adapter, root)
    if found is None:
        raise InstallError(
            f"{adapter.title}: the installation at {place} is gone; run `polynya harness install {adapter.name}`"
        )
    return found


def _install(adapter: Adapter, place: Path, root: Path, progress: Progress, timeout_s: float) -> None:
    package = adapter.install
    assert package is not None
    named = f"{adapter.title} ({package.package}@{package.version})"
    if package.registry == "pypi":
        progress(f"installing {named} from PyPI …")
        _install_environment(place, package, timeout_s)
        return
    node_dir = _node_dir(package.node_min, root, progress, timeout_s)
    progress(f"installing {named} with npm …")
    _install_package(place, package, node_dir, timeout_s)


def _install_environment(place: Path, package: Package, timeout_s: float) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        pypi_install(package, place, timeout_s)
        if not os.access(place / ENVIRONMENT / "bin" / package.bin, os.X_OK):
            raise InstallError(f"{package.package} {package.version} brought no executable `{package.bin}`")
        (place / "installed.json").write_bytes(orjson.dumps({"package": package.package, "version": package.version}))
    except OSError as error:
        raise InstallError(f"{package.package} {package.version} could not be installed at {place}: {error}") from error
    finally:
        if not (place / "installed.json").exists():
            shutil.rmtree(place, ignore_errors=True)


def _node_dir(node_min: Version | None, root: Path, progress: Progress, timeout_s: float) -> str:
    """The directory of a node that is new enough: "" for the machine's own, else that of the pinned npm package."""
    own = system_node()
    if own is not None and (node_min is None or own >= node_min):
        return ""
    place = root / "node" / NODE.version
    if not _is_complete(place, NODE):
        with _locked(place, progress):
            if not _is_complete(place, NODE):
                progress(f"installing node {NODE.version}, which the harness needs, with npm …")
                _install_package(place, NODE, "", timeout_s)
    return str(place / "node_modules" / "node" / "bin")


def _install_package(place: Path, install: Package, node_dir: str, timeout_s: float) -> None:
    package, version, executable = install.package, install.version, install.bin
    staging = place.with_name(f".{place.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        manifest = {"private": True, "dependencies": {package: version}, "allowScripts": {f"{package}@{version}": True}}
        (staging / "package.json").write_bytes(orjson.dumps(manifest))
        npm_install(system_npm(), staging, node_dir, timeout_s)
        found = package_version(staging, package)
        if found != version:
            raise InstallError(f"npm installed {package} {found or '(nothing)'} instead of the pinned {version}")
        binary = staging / "node_modules" / ".bin" / executable
        if not os.access(binary, os.X_OK):
            raise InstallError(
                f"{package}@{version} brought no executable `{executable}`; was its install script blocked?"
            )
        (staging / "installed.json").write_bytes(
            orjson.dumps({"package": package, "version": version, "node_dir": node_dir})
        )
        shutil.rmtree(place, ignore_errors=True)
        staging.rename(place)
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"{package}@{version} could not be installed at {place}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _place(adapter: Adapter, cache: Path) -> Path:
    return cache / "harnesses" / adapter.name / adapter.version


def _is_complete(place: Path, package: Package) -> bool:
    try:
        marker = orjson.loads((place / "installed.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    found = (installed_version if package.registry == "pypi" else package_version)(place, package.package)
    return bool(marker.get("version") == package.version == found)


@contextmanager
def _locked(place: Path, progress: Progress) -> Iterator[None]:
    """Holds the exclusive lock of an installation's place; the lock goes with the process, however it dies."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that installs {place.parent.name} {place.name} …")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
