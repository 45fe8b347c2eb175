"""Running npm with the node that a package needs.

npm takes an older release, or warns and goes on, where a package's `engines` doesn't match the node that runs *npm*; so npm
itself runs under the node in question, and the caller checks afterwards which version came.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import orjson

from harnesses.adapter import Package, Version
from harnesses.definition import parse_version
from harnesses.errors import HarnessError, InstallError
from harnesses.installers import run_installer

# A working node 22, as a package, for machines whose own node is older.
NODE = Package(package="node", version="22.23.3", bin="node")


def system_node() -> Version | None:
    """The version of the machine's own node, or None where there is none."""
    program = shutil.which("node")
    if program is None:
        return None
    try:
        result = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True)
        return parse_version(result.stdout)
    except (OSError, subprocess.SubprocessError, HarnessError):
        return None


def system_npm() -> Path:
    """The machine's npm.

    Raises:
        InstallError: there is none.
    """
    program = shutil.which("npm")
    if program is None:
        raise InstallError("npm is not on the PATH, and harnesses are installed with it; install Node.js 20 or newer")
    return Path(program).resolve()


def npm_install(npm: Path, prefix: Path, node_dir: str, timeout_s: float) -> None:
    """Installs what `<prefix>/package.json` names into the prefix.

    Raises:
        InstallError: npm failed (with its last lines) or the time is over (its whole process group is killed then).
    """
    environment = {**os.environ, "NO_UPDATE_NOTIFIER": "1", "npm_config_loglevel": "error"}
    argv = [str(npm)]
    if node_dir:
        environment["PATH"] = f"{node_dir}{os.pathsep}{environment.get('PATH', '')}"
        # Its own first line may name the machine's node; under this one it must run itself.
        if npm.suffix in {".js", ".cjs", ".mjs"}:
            argv.insert(0, str(Path(node_dir) / "node"))
    argv += ["install", "--prefix", str(prefix), "--no-audit", "--no-fund", "--no-package-lock", "--save-exact"]
    run_installer(argv, cwd=prefix, timeout_s=timeout_s, registry="npm", env=environment)


def package_version(prefix: Path, package: str) -> str:
    """The version of a package as it stands under a prefix, or ""."""
    try:
        manifest = orjson.loads((prefix / "node_modules" / package / "package.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return ""
    return str(manifest.get("version", ""))
