"""Package managers: what they say is told, a registry that is away is tried again, and only that."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

import harnesses
from harnesses import installers, pypi, updates
from harnesses.errors import InstallError, RegistryUnreachableError
from harnesses.installers import run_installer, with_retries


def script(path: Path, body: str) -> str:
    """A program that runs this Python."""
    path.write_text(f"#!{sys.executable}\nimport os, pathlib, sys\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("said", "is_unreachable"),
    [
        ("npm error code ECONNREFUSED", True),
        ("npm error network request failed, reason: getaddrinfo EAI_AGAIN host", True),
        ("error: Failed to fetch: error sending request for url", True),
        ("npm error 503 Service Unavailable", True),
        ("npm error code E404", False),
        ("No solution found when resolving dependencies", False),
    ],
)
def test_an_unreachable_registry_is_told_apart(tmp_path: Path, said: str, is_unreachable: bool) -> None:
    """The error names the registry when it was that, and the program's last words either way."""
    program = script(tmp_path / "npm", f"print({said!r}); sys.exit(1)")
    with pytest.raises(InstallError) as caught:
        run_installer([program], cwd=tmp_path, timeout_s=30, registry="npm")
    assert isinstance(caught.value, RegistryUnreachableError) is is_unreachable
    assert said in str(caught.value)
    assert ("the npm registry can't be reached" in str(caught.value)) is is_unreachable


def test_a_missing_program_is_an_install_error(tmp_path: Path) -> None:
    """Nothing to run is told like any other failure."""
    with pytest.raises(InstallError, match="can't be run"):
        run_installer([str(tmp_path / "none")], cwd=tmp_path, timeout_s=30, registry="npm")


def test_tries_are_bounded_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that stays away gets as many tries as there are waits, and one; each wait is told."""
    monkeypatch.setattr(installers, "RETRY_WAITS_S", (0.0, 0.0))
    tries, told = [], []

    def fail() -> None:
        tries.append(1)
        raise RegistryUnreachableError("the npm registry can't be reached; npm said:\nmore")

    with pytest.raises(RegistryUnreachableError):
        with_retries(fail, told.append)
    assert (len(tries), len(told)) == (3, 2)
    assert told[0] == "the npm registry can't be reached; npm said: Another try in 0 s …"


def test_other_failures_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that isn't there won't be there in two seconds either."""
    monkeypatch.setattr(installers, "RETRY_WAITS_S", (0.0, 0.0))
    tries = []

    def fail() -> None:
        tries.append(1)
        raise InstallError("404")

    with pytest.raises(InstallError):
        with_retries(fail, lambda _: None)
    assert len(tries) == 1


FAKE_UV = """
args = sys.argv[1:]
if args[0] == "venv":
    home = pathlib.Path(args[-1])
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").write_text("#!/bin/sh\\n"); (home / "bin" / "python").chmod(0o755)
elif args[:2] == ["pip", "install"]:
    if os.environ.get("FAKE_UV") == "fail":
        print("No solution found"); sys.exit(1)
    home = pathlib.Path(args[args.index("--python") + 1]).parents[1]
    name, _, version = args[-1].partition("==")
    version = os.environ.get("FAKE_UV", version)
    (home / "lib/python3.11/site-packages" / f"{name.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
elif args[:2] == ["pip", "compile"]:
    print(sys.stdin.read().strip() + "==9.1.0")
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stand-in for uv that does what uv does to a place."""
    program = script(tmp_path / "uv", FAKE_UV)
    for module in (pypi, updates):
        monkeypatch.setattr(module, "find_uv", lambda: program)
    return program


def test_a_python_harness_has_an_environment_of_its_own(uv: str, tmp_path: Path) -> None:
    """Made once, found again by its version; its executable is the environment's."""
    adapter, cache = harnesses.get("mini_swe_agent"), tmp_path / "cache"
    assert harnesses.find_installed(adapter, cache) is None
    made = harnesses.ensure_installed(adapter, cache)
    assert made.executable == str(cache / "harnesses/mini_swe_agent/2.4.6/venv/bin/python")
    assert made == harnesses.find_installed(adapter, cache) == harnesses.ensure_installed(adapter, cache)
    assert harnesses.find_installed(harnesses.get("mini_swe_agent", "2.4.5"), cache) is None


def test_a_failed_environment_leaves_no_trace(uv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half there after a failure, and another version than the pin isn't taken for it."""
    adapter, cache = harnesses.get("mini_swe_agent"), tmp_path / "cache"
    monkeypatch.setenv("FAKE_UV", "fail")
    with pytest.raises(InstallError, match="No solution found"):
        harnesses.ensure_installed(adapter, cache)
    assert not (cache / "harnesses/mini_swe_agent/2.4.6").exists()
    monkeypatch.setenv("FAKE_UV", "2.4.7")
    with pytest.raises(InstallError, match="is gone"):
        harnesses.ensure_installed(adapter, cache)


def test_python_that_is_too_old() -> None:
    """Our own Python where it will do; a clear error where none on the machine does."""
    assert pypi.find_python((3, 10, 0)) == sys.executable
    with pytest.raises(InstallError, match=r"it needs Python 99\.0\.0 or newer"):
        pypi.find_python((99, 0, 0))


def test_newest_of_each_registry(uv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Npm and uv are asked, and versions compared as numbers; what installs nothing has none."""
    npm = script(tmp_path / "npm", "print('\"1.10.0\"')")
    monkeypatch.setattr(updates, "system_npm", lambda: npm)
    found = updates.newest(harnesses.get("pi"))
    assert found is not None
    assert (found.pinned, found.newest, found.is_newer) == ("1.6.0", "1.10.0", True)
    found = updates.newest(harnesses.get("mini_swe_agent"))
    assert found is not None
    assert (found.package, found.newest, found.is_newer) == ("mini-swe-agent", "9.1.0", True)
    assert updates.newest(harnesses.get("shell")) is None
    assert not updates.Update(name="x", package="x", pinned="1.2.0", newest="1.2.0").is_newer


def test_offline_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a registry there is no answer, and the error says that it is the registry."""
    npm = script(tmp_path / "npm", "sys.stderr.write('npm error code ENOTFOUND'); sys.exit(1)")
    monkeypatch.setattr(updates, "system_npm", lambda: npm)
    with pytest.raises(RegistryUnreachableError, match="the npm registry can't be reached"):
        updates.newest(harnesses.get("pi"))


def test_a_version_that_npm_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty answer is no newer version."""
    npm = script(tmp_path / "npm", "pass")
    monkeypatch.setattr(updates, "system_npm", lambda: npm)
    with pytest.raises(InstallError, match="offers no version"):
        updates.newest(harnesses.get("pi"))


def test_npm_words_that_are_no_version_are_an_error_of_the_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice on standard output, for example: no traceback of a JSON parser."""
    monkeypatch.setattr(updates, "system_npm", lambda: Path("npm"))
    monkeypatch.setattr(updates, "_asked", lambda *_: "npm notice")
    with pytest.raises(InstallError, match="npm notice"):
        updates.newest(harnesses.get("pi"))
