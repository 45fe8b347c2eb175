"""The SWE-Gym-like set, without a stack: made, imported, cloned, mended by the scripted policy, and its tests run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compose.cli.main import app
from compose.cli.task_file import read_tasks
from examples import policy
from schemas.task import TaskSpec

SCRIPT = Path(__file__).parents[2] / "examples" / "swe_gym" / "make_task_set.py"
CLONE = "git clone -q --single-branch -b {instance_id} %s/repos/{repo}.git . && git checkout -q {base_commit}"


def made(where: Path) -> list[dict[str, Any]]:
    """The set's rows."""
    subprocess.run([sys.executable, SCRIPT, "--out", where], check=True, capture_output=True, timeout=60)
    return [json.loads(line) for line in (where / "rows.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """One set for all tests here."""
    where = tmp_path_factory.mktemp("set")
    return where, made(where)


def imported(where: Path) -> list[TaskSpec]:
    """The tasks, as the example's page makes them."""
    options = ["--format", "swegym", "--runtime", "local", "--repo-dir", ".", "--prepare", CLONE % where]
    done = CliRunner().invoke(
        app, ["tasks", "import", str(where / "rows.jsonl"), *options, "--out", str(where / "tasks.jsonl")]
    )
    assert done.exit_code == 0, done.output
    return read_tasks(str(where / "tasks.jsonl"))


def test_the_same_input_gives_the_same_commits(rows: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Five issues in three repositories, row for row the same in another directory."""
    assert made(tmp_path) == rows[1]
    assert (len(rows[1]), len({row["repo"] for row in rows[1]})) == (5, 3)


def sh(command: str, at: Path, stdin: str = "") -> str:
    """What a shell command prints; it must succeed."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=at, input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def said(prompt: str) -> str:
    """The command in the policy's next tool call."""
    reply = policy.answer(prompt) or ""
    call = re.search(r"<tool_call>\n(.*)\n</tool_call>", reply, re.DOTALL)
    assert call is not None, reply
    command: str = json.loads(call[1])["arguments"]["command"]
    return command


def test_an_issue_is_cloned_mended_and_seen_by_its_tests(
    rows: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """The task holds no solution and its clone no way to one; the policy's commands make exactly the row's patch; its tests pass."""
    where, ((row, *_), tasks) = rows[0], (rows[1], imported(rows[0]))
    task = next(t for t in tasks if t.task_id == f"swegym-{row['instance_id']}")
    assert "abs(current - previous)" not in task.model_dump_json()
    sh(task.prepare[0].exec or "", tmp_path)
    assert sh("git rev-parse HEAD", tmp_path).strip() == row["base_commit"]
    assert sh("git branch -a --format '%(refname:short)' | grep -c tides-2 || true", tmp_path).strip() == "0"
    assert where.exists()
    first = policy.ASSISTANT.join([task.instruction, ""])
    assert said(first) == "cat tides.py"
    sh(said(f"{first}I look at it.\n{policy.ASSISTANT}"), tmp_path)
    assert sh("git diff", tmp_path) == row["patch"]
    sh("git apply", tmp_path, stdin=row["test_patch"])
    passed = sh(f"{sys.executable} -m pytest -p no:cacheprovider -q -rA tests", tmp_path)
    assert all(f"PASSED {name}" in passed for name in [*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]])
