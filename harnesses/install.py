"""Installing harnesses once into a cache: exact versions, whole or not at all, one process at a time.

Layout: `<cache>/harnesses/<name>/<version>/` and `<cache>/node/<version>/`, each a npm prefix with a file `installed.json` that was
written last. An installation grows in a staging directory beside its place and is renamed into it; a lock file keeps two
processes from doing it twice.
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

from harnesses.adapter import Adapter, NpmInstall
from harnesses.errors import InstallError
from harnesses.npm import NODE, npm_install, package_version, system_node, system_npm

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
    if not _is_complete(place, adapter.install.package, adapter.install.version):
        return None
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
        node_dir = _node_dir(adapter.install.node_min, root, progress, timeout_s)
        progress(f"installing {adapter.title} ({adapter.install.package}@{adapter.install.version}) with npm …")
        _install_package(place, adapter.install, node_dir, timeout_s)
        progress(f"installed {adapter.title} {adapter.install.version}")
    found = find_installed(adapter, root)
    if found is None:
        raise InstallError(
            f"{adapter.title}: the installation at {place} is gone; run `polynya harness install {adapter.name}`"
        )
    return found


def _node_dir(node_min: tuple[int, int, int] | None, root: Path, progress: Progress, timeout_s: float) -> str:
    """The directory of a node that is new enough: "" for the machine's own, else that of the pinned npm package."""
    own = system_node()
    if own is not None and (node_min is None or own >= node_min):
        return ""
    place = root / "node" / NODE.version
    if not _is_complete(place, NODE.package, NODE.version):
        with _locked(place, progress):
            if not _is_complete(place, NODE.package, NODE.version):
                progress(f"installing node {NODE.version}, which the harness needs, with npm …")
                _install_package(place, NODE, "", timeout_s)
    return str(place / "node_modules" / "node" / "bin")


def _install_package(place: Path, install: NpmInstall, node_dir: str, timeout_s: float) -> None:
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


def _is_complete(place: Path, package: str, version: str) -> bool:
    try:
        marker = orjson.loads((place / "installed.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return False
    return bool(marker.get("version") == version and package_version(place, package) == version)


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
