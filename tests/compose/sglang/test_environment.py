"""SGLang's environment: made once, resumed, refused where it can't be; the stand-ins for what a CPU doesn't need."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compose.sglang import environment
from compose.sglang.environment import SGLANG_VERSION, EnvironmentFailedError, ensure_environment, environment_dir

ROOT = Path(__file__).parents[3]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been run, in words; nothing is downloaded."""
    done: list[str] = []

    def run(command: list[str], what: str, limit_s: float, **_: Any) -> str:
        done.append(what)
        if "virtual environment" in what:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        if "where packages go" in what:
            site = Path(command[0]).parents[1] / "site-packages"
            site.mkdir(exist_ok=True)
            return f"{site}\n"
        return ""

    monkeypatch.setattr(environment, "_run", run)
    return done


def test_it_is_made_once(tmp_path: Path, steps: list[str]) -> None:
    """The second time nothing runs; what was said the first time names the size of it."""
    said: list[str] = []
    python = ensure_environment("cpu", said.append, cache=tmp_path)
    assert python == environment_dir("cpu", tmp_path) / "bin" / "python"
    assert any("GB to download" in line for line in said)
    first = list(steps)
    assert first[-1] == "importing SGLang's server"
    assert ensure_environment("cpu", said.append, cache=tmp_path) == python
    assert steps == first
    site = environment_dir("cpu", tmp_path) / "site-packages"
    assert (site / "polynya_cpu_stand_ins.pth").read_text() == "import polynya_cpu_stand_ins\n"


def test_a_run_that_broke_off_goes_on(tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its last mark it isn't complete: the environment is kept, installing is done again, and says so when it fails."""
    real: Callable[..., None] = environment._install

    def broken(*_: Any) -> None:
        raise EnvironmentFailedError("no network")

    monkeypatch.setattr(environment, "_install", broken)
    with pytest.raises(EnvironmentFailedError, match="no network"):
        ensure_environment("cpu", lambda _: None, cache=tmp_path)
    monkeypatch.setattr(environment, "_install", real)
    steps.clear()
    ensure_environment("cpu", lambda _: None, cache=tmp_path)
    assert "making the virtual environment" not in steps
    assert "downloading and installing SGLang" in steps


def test_other_requirements_are_installed_anew(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version of this project may bring another set of packages."""
    ensure_environment("cpu", lambda _: None, cache=tmp_path)
    steps.clear()
    monkeypatch.setattr(environment, "_digest", lambda _: "another")
    ensure_environment("cpu", lambda _: None, cache=tmp_path)
    assert "downloading and installing SGLang" in steps


def test_a_full_disk_is_said_before_anything_is_downloaded(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how much is needed and where else it may go."""
    monkeypatch.setitem(environment.NEEDED_BYTES, "cpu", 1 << 60)
    with pytest.raises(EnvironmentFailedError, match="POLYNYA_CACHE"):
        ensure_environment("cpu", lambda _: None, cache=tmp_path)
    assert steps == []


def test_a_failing_step_says_what_to_type() -> None:
    """The command, the end of its output, and what to do."""
    command = [sys.executable, "-c", "print('no such index'); raise SystemExit(2)"]
    with pytest.raises(EnvironmentFailedError, match="run the same command again") as raised:
        environment._run(command, "installing", 60.0)
    assert "no such index" in str(raised.value)
    assert "installing failed (2)" in str(raised.value)


def test_the_dependency_group_is_the_version_that_is_installed() -> None:
    """One version, in the project's group, the pinned set for CPUs and the code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["dependency-groups"]["sglang"] == [f"sglang=={SGLANG_VERSION}"]
    pinned = (ROOT / "compose/sglang/cpu_requirements.txt").read_text().splitlines()
    assert f"sglang=={SGLANG_VERSION}" in pinned
    assert all("==" in line for line in pinned if line and not line.startswith("#"))


CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import polynya_cpu_stand_ins
import sgl_kernel.ops.things as things
class Derived(things.Base): pass
def f(x: things.Some.Type) -> None: ...
print(things.__version__, issubclass(Derived, things.Base.__mro__[-1]))
try:
    things.kernel(1)
except NotImplementedError as error:
    print(error)
import importlib.util
print(importlib.util.find_spec("surely_not_there"))
"""


def test_stand_ins_can_be_imported_and_never_called(tmp_path: Path) -> None:
    """Annotations and base classes work, a call raises with the name of what is missing, and other packages are untouched."""
    assert importlib.util.find_spec("sgl_kernel") is None  # importing this project's module installs nothing here
    source = (ROOT / "compose/sglang/cpu_stand_ins.py").read_text()
    (tmp_path / "polynya_cpu_stand_ins.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    version, error, other = done.stdout.splitlines()
    assert version == "0.0.0 True"
    assert error.startswith("sgl_kernel.ops.things.kernel isn't there")
    assert other == "None"
