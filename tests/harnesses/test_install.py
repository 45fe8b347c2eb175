"""Installing into the cache, with a stand-in for npm (a script that does what npm does to a prefix)."""

from __future__ import annotations

import os
import stat
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import harnesses
from harnesses import install, npm
from harnesses.errors import InstallError

ADAPTER = harnesses.get("pi")

FAKE_NPM = """#!{python}
import json, os, pathlib, sys, time
prefix = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1])
with open(os.environ["FAKE_NPM_CALLS"], "a") as calls:
    calls.write(json.dumps({{"argv": sys.argv[1:], "path": os.environ["PATH"]}}) + "\\n")
mode = os.environ.get("FAKE_NPM_MODE", "")
if mode == "fail":
    print("npm error 404 no such package"); sys.exit(1)
if mode == "hang":
    time.sleep(60)
(package, version), = json.loads((prefix / "package.json").read_text())["dependencies"].items()
if mode == "older" and package != "node":
    version = "0.74.2"
home = prefix / "node_modules" / package
home.mkdir(parents=True)
(home / "package.json").write_text(json.dumps({{"version": version}}))
bins = [prefix / "node_modules" / ".bin" / ("node" if package == "node" else "pi")]
if package == "node":
    bins.append(home / "bin" / "node")
for path in bins if mode != "no-bin" else []:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\\n"); path.chmod(0o755)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the stand-in for npm and node 20; the file in which each call is noted."""
    script = tmp_path / "npm"
    script.write_text(FAKE_NPM.format(python=sys.executable))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    noted = tmp_path / "calls"
    noted.touch()
    monkeypatch.setenv("FAKE_NPM_CALLS", str(noted))
    monkeypatch.setattr(install, "system_npm", lambda: script)
    monkeypatch.setattr(install, "system_node", lambda: (20, 20, 2))
    return noted


def test_installed_once(calls: Path, tmp_path: Path) -> None:
    """The first call installs (with progress lines), the second finds it; node 22 comes too where the machine's is older."""
    cache, said = tmp_path / "cache", []
    assert harnesses.find_installed(ADAPTER, cache) is None
    first = harnesses.ensure_installed(ADAPTER, cache, said.append)
    assert os.access(first.executable, os.X_OK)
    assert first.path_dirs == (str(cache / "node" / npm.NODE.version / "node_modules" / "node" / "bin"),)
    assert harnesses.ensure_installed(ADAPTER, cache, said.append) == first == harnesses.find_installed(ADAPTER, cache)
    assert len(calls.read_text().splitlines()) == 2
    assert any("installing node" in line for line in said)
    assert said[-1] == "installed Pi coding agent 1.6.0"
    # npm itself ran with that node first on its PATH, and wrote no lock file of its own choosing.
    assert first.path_dirs[0] in calls.read_text().splitlines()[1]
    assert not list(cache.rglob("*.staging"))


def test_new_enough_node_is_used(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine's own node will do, no other is installed."""
    monkeypatch.setattr(install, "system_node", lambda: (24, 0, 0))
    assert harnesses.ensure_installed(ADAPTER, tmp_path / "cache").path_dirs == ()
    assert len(calls.read_text().splitlines()) == 1


def test_other_version_is_another_place(calls: Path, tmp_path: Path) -> None:
    """Two versions of one harness stand side by side."""
    other = harnesses.get("pi", "1.5.0")
    first = harnesses.ensure_installed(ADAPTER, tmp_path / "cache")
    assert harnesses.ensure_installed(other, tmp_path / "cache").executable != first.executable
    assert harnesses.find_installed(replace(ADAPTER), tmp_path / "cache") == first


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("fail", "npm exited with 1; its last lines:\nnpm error 404"),
        ("older", "npm installed .* 0.74.2 instead of the pinned 1.6.0"),
        ("no-bin", "brought no executable"),
    ],
)
def test_failure_leaves_no_trace(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, message: str
) -> None:
    """A failed installation says why, leaves nothing half there, and the next try starts afresh."""
    monkeypatch.setattr(install, "system_node", lambda: (24, 0, 0))
    monkeypatch.setenv("FAKE_NPM_MODE", mode)
    with pytest.raises(InstallError, match=message):
        harnesses.ensure_installed(ADAPTER, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache" / "harnesses" / "pi").iterdir() if path.is_dir()]
    monkeypatch.delenv("FAKE_NPM_MODE")
    assert harnesses.ensure_installed(ADAPTER, tmp_path / "cache").executable


def test_npm_that_hangs_is_killed(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Npm has a deadline."""
    monkeypatch.setattr(install, "system_node", lambda: (24, 0, 0))
    monkeypatch.setenv("FAKE_NPM_MODE", "hang")
    with pytest.raises(InstallError, match="not done after 1 s"):
        harnesses.ensure_installed(ADAPTER, tmp_path / "cache", timeout_s=1)


def test_rests_of_a_killed_installation_are_thrown_away(calls: Path, tmp_path: Path) -> None:
    """What a killed process left in staging doesn't get in the way, and isn't taken for an installation."""
    place = tmp_path / "cache" / "harnesses" / "pi" / "1.6.0"
    (place / "node_modules").mkdir(parents=True)
    (place.with_name(".1.6.0.staging") / "rest").mkdir(parents=True)
    assert harnesses.find_installed(ADAPTER, tmp_path / "cache") is None
    assert harnesses.ensure_installed(ADAPTER, tmp_path / "cache").executable
    assert not place.with_name(".1.6.0.staging").exists()


def test_only_one_at_a_time(calls: Path, tmp_path: Path) -> None:
    """Several at once install once; the others wait and find it."""
    found: list[harnesses.Installed] = []
    threads = [
        threading.Thread(target=lambda: found.append(harnesses.ensure_installed(ADAPTER, tmp_path / "cache")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(calls.read_text().splitlines()) == 2


def test_shell_needs_nothing(tmp_path: Path) -> None:
    """A harness that installs nothing is always installed, and leaves the cache alone."""
    assert harnesses.ensure_installed(harnesses.get("shell"), tmp_path / "cache") == harnesses.Installed()
    assert not (tmp_path / "cache").exists()


def test_cache_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """POLYNYA_CACHE chooses the cache."""
    monkeypatch.setenv("POLYNYA_CACHE", str(tmp_path))
    assert harnesses.default_cache() == tmp_path
    monkeypatch.delenv("POLYNYA_CACHE")
    assert harnesses.default_cache() == Path.home() / ".cache" / "polynya"
