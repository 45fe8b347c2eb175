"""Rows of SWE-bench, SWE-Gym and SkyRL-v0-293 as tasks: the issue is the instruction, the tests grade."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from compose.errors import usage
from compose.tasks.options import ImportOptions, task_of
from compose.tasks.rows import Row

NEEDED = ("instance_id", "repo", "problem_statement")
# What of a row grading needs; the solution itself is never put into a task.
_GRADED_BY = ("instance_id", "repo", "version", "base_commit", "test_patch")

REPO_DIR = "/testbed"
"""Where the benchmarks' images have the repository."""

INSTRUCTION = """\
The repository {repo} is checked out in {repo_dir}. Change its source so that this issue is resolved:

{problem_statement}

Don't change existing tests. Look at the code first, reproduce the problem where you can, and check your change by running it.
"""


@dataclass(frozen=True, slots=True)
class SweFormat:
    """One family of data sets: how its images are named, and what the data set is called."""

    data_set: str
    image: str
    """With `{instance}` for the row's id in the form that the registry wants."""
    separator: str
    """What stands for the two underscores of an instance's id in an image's name."""

    def image_of(self, row: Row) -> str:
        """The image of a row: its own field where it has one, else by the family's rule."""
        own = row.get("image_name") or row.get("docker_image")
        return (
            str(own)
            if own
            else self.image.format(instance=str(row["instance_id"]).replace("__", self.separator).lower())
        )


FAMILIES = {
    "swebench": SweFormat("swebench", "swebench/sweb.eval.x86_64.{instance}:latest", "_1776_"),
    "swegym": SweFormat("swegym", "xingyaoww/sweb.eval.x86_64.{instance}:latest", "_s_"),
    "skyrl": SweFormat("skyrl-v0-293", "xingyaoww/sweb.eval.x86_64.{instance}:latest", "_s_"),
}


def swe_task(row: Row, options: ImportOptions, where: str, *, family: SweFormat) -> dict[str, Any]:
    """A task file's tree from one row. CommandError when a field is missing."""
    nested = row.get("instance")
    row = {**row, **nested} if isinstance(nested, dict) else row  # SkyRL's rows wrap the instance
    for name in NEEDED:
        if not row.get(name):
            raise usage(f"{where}: the row has no {name!r}; it has {', '.join(sorted(row))}")
    repo_dir = options.repo_dir or REPO_DIR
    instance = {name: row[name] for name in _GRADED_BY if row.get(name) is not None}
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        instance[name] = _tests(row.get(name), f"{where}: {name}")
    if not instance["FAIL_TO_PASS"]:
        raise usage(f"{where}: FAIL_TO_PASS names no test")
    grading: dict[str, Any] = {"instance": instance}
    if repo_dir != REPO_DIR:
        grading["repo_dir"] = repo_dir
    if options.test_command:
        grading["test_command"] = options.test_command
    wording = options.instruction or INSTRUCTION
    fields = {"repo": row["repo"], "repo_dir": repo_dir, "problem_statement": str(row["problem_statement"]).strip()}
    return task_of(
        options,
        task_id=f"{family.data_set}-{row['instance_id']}",
        instruction=_filled(wording, fields),
        image=family.image_of(row),
        workdir=repo_dir,
        prepare=[_filled(command, _in_a_shell(row)) for command in options.prepare],
        evaluator={"name": "swebench", "options": grading},
        metadata={
            "data_set": family.data_set,
            "instance_id": row["instance_id"],
            "repo": row["repo"],
            **({"split": row["split"]} if row.get("split") else {}),
        },
    )


def _in_a_shell(row: Row) -> dict[str, Any]:
    # A row is somebody's data: none of its values may end a word of the command that it stands in.
    return {name: shlex.quote(str(row.get(name) or "")) for name in ("instance_id", "repo", "base_commit")}


def _filled(wording: str, fields: dict[str, Any]) -> str:
    # Not `format`: a wording may hold braces of its own.
    for name, value in fields.items():
        wording = wording.replace(f"{{{name}}}", str(value))
    return wording


def _tests(value: Any, where: str) -> list[str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as exc:
            raise usage(f"{where} is no JSON list: {exc}") from exc
    if not isinstance(value, list | tuple | type(None)):
        raise usage(f"{where} must be a list of tests")
    return [str(test) for test in value or []]
