"""Task folders of the Harbor format: instruction.md, task.toml, environment/, tests/."""

from __future__ import annotations

import base64
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from compose.errors import usage
from compose.tasks.options import ImportOptions, task_of

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)
_IN_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
WORKDIR: Final = "/app"
"""Where the format's images usually run their programs, if they don't say."""

# A verifier's budget beside what its script may take: uploads, and the reading of its files.
_AROUND_S = 60.0


def task_folders(root: Path) -> list[Path]:
    """The task folders at or below a folder, in order of their names; a usage error when there is none."""
    found = [root] if (root / "task.toml").is_file() else sorted(path.parent for path in root.glob("*/task.toml"))
    if not found:
        raise usage(
            f"{root} is no Harbor task and holds none: there is no task.toml", hint="polynya tasks import FOLDER"
        )
    return found


def harbor_tasks(root: Path, options: ImportOptions) -> Iterator[dict[str, Any]]:
    """Task files' trees, one for each folder."""
    for folder in task_folders(root):
        yield harbor_task(folder, options)


def harbor_task(folder: Path, options: ImportOptions) -> dict[str, Any]:
    """One folder as a task file's tree. CommandError when something is missing or can't be read."""
    try:
        config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise usage(f"{folder}: {exc}") from exc
    verifier, agent, environment = (config.get(name) or {} for name in ("verifier", "agent", "environment"))
    if verifier.get("environment_mode", "shared") != "shared":
        raise usage(f"{folder}: its verifier wants an environment of its own, which can't be imported")
    image = str(environment.get("docker_image") or "")
    if options.runtime != "local" and not (options.image or image):
        raise usage(
            f"{folder}: task.toml names no environment.docker_image",
            hint=f"build it and name it: docker build -t NAME {folder}/environment, then --image NAME",
        )
    name = str((config.get("task") or {}).get("name") or folder.name)
    grading: dict[str, Any] = {"tests": _files(folder / "tests")}
    if "test.sh" not in grading["tests"]:
        raise usage(f"{folder}: there is no tests/test.sh")
    if env := verifier.get("env"):
        grading["env"] = {key: str(value) for key, value in env.items()}
    if timeout_s := verifier.get("timeout_sec"):
        grading["timeout_s"] = float(timeout_s)
    budgets = {"evaluate_s": float(grading.get("timeout_s", 600.0)) + _AROUND_S}
    if agent.get("timeout_sec"):
        budgets["run_s"] = float(agent["timeout_sec"])
    metadata = {**(config.get("metadata") or {}), "data_set": "harbor", "instance_id": name}
    return task_of(
        options,
        task_id=f"harbor-{name.replace('/', '--')}",
        instruction=instruction,
        image=image,
        evaluator={"name": "harbor", "options": grading},
        metadata=_plain(metadata),
        budgets=budgets,
        workdir=options.repo_dir or _workdir(folder / "environment" / "Dockerfile"),
        limits=_limits(environment, folder) if options.runtime != "local" else None,
        prepare=options.prepare,
    )


def _workdir(dockerfile: Path) -> str:
    """Where the image's programs run: the last WORKDIR of its Dockerfile, in which later ones count from earlier ones."""
    workdir = WORKDIR
    if dockerfile.is_file():
        for line in dockerfile.read_text(encoding="utf-8", errors="replace").splitlines():
            if (found := re.match(r"\s*WORKDIR\s+[\"']?([^\s\"']+)", line, re.IGNORECASE)) and "$" not in found[1]:
                workdir = posixpath.normpath(posixpath.join(workdir, found[1]))
    return workdir


def _limits(environment: dict[str, Any], folder: Path) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if cpus := environment.get("cpus"):
        limits["cpus"] = float(cpus)
    memory = environment.get("memory_mb")
    if memory is None and (text := environment.get("memory")):
        size = _SIZE.fullmatch(str(text).strip())
        if size is None:
            raise usage(f"{folder}: environment.memory {text!r} is no size like 2G")
        memory = float(size[1]) * _IN_MB[size[2].upper()]
    if memory:
        limits["memory_mb"] = max(1, round(float(memory)))
    if environment.get("allow_internet"):
        limits["network"] = "egress"
    return limits


def _files(root: Path) -> dict[str, Any]:
    """Every file below a folder: text as text, everything else in base64."""
    files: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            try:
                files[path.relative_to(root).as_posix()] = data.decode()
            except UnicodeDecodeError:
                files[path.relative_to(root).as_posix()] = {"base64": base64.b64encode(data).decode()}
    return files


def _plain(value: Any) -> Any:
    """TOML's values as JSON has them: dates become texts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
