"""Importers, with golden rows written for the purpose."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compose.cli.main import app
from compose.cli.task_file import read_tasks
from compose.errors import CommandError
from compose.tasks import ImportOptions, import_tasks
from schemas.task import TaskSpec

PATCH = "diff --git a/tests/test_x.py b/tests/test_x.py\n--- a/tests/test_x.py\n+++ b/tests/test_x.py\n@@ -1 +1 @@\n-a\n+b\n"
SOLUTION = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-secret\n+solution\n"
ROW: dict[str, Any] = {
    "instance_id": "someone__Things-12",
    "repo": "someone/things",
    "base_commit": "0123456789abcdef0123456789abcdef01234567",
    "problem_statement": "Things {break} at midnight.\n",
    "hints_text": "look at x.py",
    "version": "1.2",
    "patch": SOLUTION,
    "test_patch": PATCH,
    "FAIL_TO_PASS": '["tests/test_x.py::test_midnight"]',
    "PASS_TO_PASS": '["tests/test_x.py::test_noon"]',
}
LOCAL = ImportOptions(harness="shell", harness_options={"command": "true"}, runtime="local")


def imported(path: Path, format_: str, options: ImportOptions | None = None) -> list[TaskSpec]:
    return list(import_tasks(path, format_, options or ImportOptions()))


def jsonl(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    ("format_", "image"),
    [
        ("swebench", "swebench/sweb.eval.x86_64.someone_1776_things-12:latest"),
        ("swegym", "xingyaoww/sweb.eval.x86_64.someone_s_things-12:latest"),
        ("skyrl", "xingyaoww/sweb.eval.x86_64.someone_s_things-12:latest"),
    ],
)
def test_swe_rows(tmp_path: Path, format_: str, image: str) -> None:
    """The issue is the instruction, the row's tests grade, the image is the family's; the solution is nowhere."""
    row = {"prompt": [{"role": "user", "content": "x"}], "instance": ROW} if format_ == "skyrl" else ROW
    (task,) = imported(jsonl(tmp_path, row), format_)
    assert "Things {break} at midnight." in task.instruction
    assert "/testbed" in task.instruction
    assert (task.runtime.kind, task.runtime.image, task.harness.name) == ("docker", image, "pi")
    assert task.runtime.options == {"workdir": "/testbed"}
    assert task.evaluator.name == "swebench"
    assert task.evaluator.options["instance"] == {
        "instance_id": "someone__Things-12",
        "repo": "someone/things",
        "version": "1.2",
        "base_commit": ROW["base_commit"],
        "test_patch": PATCH,
        "FAIL_TO_PASS": ["tests/test_x.py::test_midnight"],
        "PASS_TO_PASS": ["tests/test_x.py::test_noon"],
    }
    assert (task.metadata["repo"], task.metadata["instance_id"]) == ("someone/things", "someone__Things-12")
    assert "solution" not in task.model_dump_json()


def test_lists_and_own_images(tmp_path: Path) -> None:
    """Tests may be lists, and a row may name its image."""
    row = ROW | {"FAIL_TO_PASS": ["a::b"], "PASS_TO_PASS": [], "image_name": "mine:1"}
    (task,) = imported(jsonl(tmp_path, row), "swebench", ImportOptions(samples=4, run_s=60, policy_id="p"))
    assert (task.runtime.image, task.num_samples, task.budgets.run_s, task.policy_id) == ("mine:1", 4, 60.0, "p")
    assert task.evaluator.options["instance"]["FAIL_TO_PASS"] == ["a::b"]


def test_a_runtime_on_this_machine(tmp_path: Path) -> None:
    """`local` has no image; repository, test command and wording are the import's."""
    options = ImportOptions(
        harness="shell",
        harness_options={"command": "true"},
        runtime="local",
        repo_dir="repo",
        test_command="make check",
        instruction="In {repo_dir}: {problem_statement} {untouched}",
    )
    (task,) = imported(jsonl(tmp_path, ROW), "swegym", options)
    assert task.runtime.model_dump(exclude_defaults=True) == {}
    assert task.instruction == "In repo: Things {break} at midnight. {untouched}"
    assert task.evaluator.options["repo_dir"] == "repo"
    assert task.evaluator.options["test_command"] == "make check"


def test_parquet(tmp_path: Path) -> None:
    """Data sets come as Parquet, too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([ROW | {"FAIL_TO_PASS": ["a::b"], "PASS_TO_PASS": ["a::c"]}]), path)
    (task,) = imported(path, "swegym")
    assert task.evaluator.options["instance"]["PASS_TO_PASS"] == ["a::c"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"instance_id": "a"}, "the row has no 'repo'"),
        (ROW | {"FAIL_TO_PASS": "[oops"}, "FAIL_TO_PASS is no JSON list"),
        (ROW | {"FAIL_TO_PASS": []}, "FAIL_TO_PASS names no test"),
    ],
)
def test_bad_rows(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """A row that can't be graded is named."""
    with pytest.raises(CommandError, match=message) as caught:
        imported(jsonl(tmp_path, ROW | {"instance_id": "first"}, row), "swebench")
    assert "row 2" in str(caught.value)


def harbor_folder(tmp_path: Path, config: str) -> Path:
    folder = tmp_path / "tasks" / "hello"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(config)
    (folder / "instruction.md").write_text("# Say hello\n\nWrite hello.txt.\n")
    (folder / "environment").mkdir()
    (folder / "environment" / "Dockerfile").write_text("FROM debian\nWORKDIR /srv\nRUN true\nworkdir app\nWORKDIR $X\n")
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (folder / "tests" / "blob.bin").write_bytes(b"\xff\x00")
    return folder


CONFIG = """
version = "1.0"
[task]
name = "org/hello"
[metadata]
difficulty = "easy"
made_on = 2025-01-01
[verifier]
timeout_sec = 120.0
env = { MODE = "strict", LEVEL = 3 }
[agent]
timeout_sec = 300.0
[environment]
docker_image = "org/hello:1"
cpus = 2
memory = "4G"
allow_internet = true
"""


def test_harbor(tmp_path: Path) -> None:
    """A task folder: instruction, verifier with its files and budget, limits and metadata."""
    folder = harbor_folder(tmp_path, CONFIG)
    for path in (folder, folder.parent):
        (task,) = imported(path, "harbor")
        assert task.task_id == "harbor-org--hello"
        assert task.instruction == "# Say hello\n\nWrite hello.txt."
        assert task.runtime.model_dump(exclude_defaults=True) == {
            "kind": "docker",
            "image": "org/hello:1",
            "cpus": 2.0,
            "memory_mb": 4096,
            "network": "egress",
            "options": {"workdir": "/srv/app"},
        }
        assert task.evaluator.options == {
            "tests": {
                "test.sh": "echo 1 > /logs/verifier/reward.txt\n",
                "blob.bin": {"base64": base64.b64encode(b"\xff\x00").decode()},
            },
            "env": {"MODE": "strict", "LEVEL": "3"},
            "timeout_s": 120.0,
        }
        assert (task.budgets.run_s, task.budgets.evaluate_s) == (300.0, 180.0)
        assert task.metadata == {
            "difficulty": "easy",
            "made_on": "2025-01-01",
            "data_set": "harbor",
            "instance_id": "org/hello",
        }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("version = '1.0'", "names no environment.docker_image"),
        ("[environment]\ndocker_image='x'\nmemory='much'", "no size like 2G"),
        ("[verifier]\nenvironment_mode='separate'", "wants an environment of its own"),
        ("oops", "Expected '='"),
    ],
)
def test_bad_folders(tmp_path: Path, config: str, message: str) -> None:
    """What can't be imported is said, with the folder."""
    with pytest.raises(CommandError, match=message):
        imported(harbor_folder(tmp_path, config), "harbor")


def test_plain_rows(tmp_path: Path) -> None:
    """Fields of a task win over the import's; what is none becomes metadata."""
    rows = [
        {"prompt": "Add 1 and 2.", "id": "sum-1", "level": 3},
        {"instruction": "Count.", "task_id": "mine", "num_samples": 2, "metadata": {"repo": "r"}},
    ]
    first, second = imported(jsonl(tmp_path, *rows), "jsonl", LOCAL)
    assert (first.task_id, first.instruction, first.metadata) == ("sum-1", "Add 1 and 2.", {"id": "sum-1", "level": 3})
    assert (second.task_id, second.num_samples, second.metadata) == ("mine", 2, {"repo": "r"})
    with pytest.raises(CommandError, match="no instruction"):
        imported(jsonl(tmp_path, {"answer": "42"}), "jsonl", LOCAL)
    with pytest.raises(CommandError, match="stands for an earlier task"):
        imported(jsonl(tmp_path, rows[0], rows[0]), "jsonl", LOCAL)
    with pytest.raises(CommandError, match="runtime `docker` needs an image") as caught:
        imported(jsonl(tmp_path, rows[0]), "jsonl")
    assert caught.value.hint == "--image NAME, or --runtime local"


def test_the_command_writes_what_submit_reads(tmp_path: Path) -> None:
    """From rows to a task file on disk, and back through the reader of `submit`."""
    rows = jsonl(tmp_path, ROW, ROW | {"instance_id": "someone__Things-13"})
    to_ = tmp_path / "out" / "tasks.jsonl"
    done = CliRunner().invoke(app, ["tasks", "import", str(rows), "--format", "swebench", "--out", str(to_), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"file": str(to_), "tasks": 2}
    tasks = read_tasks(str(to_))
    assert [task.task_id for task in tasks] == ["swebench-someone__Things-12", "swebench-someone__Things-13"]
    assert tasks == imported(rows, "swebench")


def test_an_unknown_format(tmp_path: Path) -> None:
    """The formats that there are stand in the hint."""
    with pytest.raises(CommandError) as caught:
        imported(jsonl(tmp_path, ROW), "riddles")
    assert caught.value.hint == "--format swebench|swegym|skyrl|harbor|jsonl"


def test_commands_before_a_run_hold_the_rows_fields_as_words(tmp_path: Path) -> None:
    """`prepare` fetches a repository where no image has it; a row can't end the word that its value stands in."""
    options = ImportOptions(
        harness="shell",
        harness_options={"command": "true"},
        runtime="local",
        prepare=("git clone /repos/{repo}.git . && git checkout {base_commit}", "echo {instance_id}"),
    )
    hostile = {**ROW, "instance_id": "x; rm -rf ~"}
    (task,) = imported(jsonl(tmp_path, hostile), "swegym", options)
    assert [step.exec for step in task.prepare] == [
        f"git clone /repos/someone/things.git . && git checkout {ROW['base_commit']}",
        "echo 'x; rm -rf ~'",
    ]
    (plain,) = imported(jsonl(tmp_path, {"instruction": "Say hello."}), "jsonl", options)
    assert plain.prepare[0].exec == "git clone /repos/{repo}.git . && git checkout {base_commit}"
