"""A small set of SWE-Gym rows from nothing: git repositories with a bug each, and tests that a right patch makes pass.

    python examples/swe_gym/make_task_set.py --out .polynya/swe_gym [--check]

It writes `repos/<owner>/<name>.git` and `rows.jsonl` in SWE-Gym's columns. The same input gives the same commits. `--check`
applies every row's own solution and runs the tests before and after, as one should with any set before it is trained on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
# Fixed, so that a commit's id depends on its content alone.
WHO = {
    "GIT_AUTHOR_NAME": "polynya",
    "GIT_AUTHOR_EMAIL": "examples@polynya.invalid",
    "GIT_COMMITTER_NAME": "polynya",
    "GIT_COMMITTER_EMAIL": "examples@polynya.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
TEST_COMMAND = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q")


def git(*args: str, at: Path) -> str:
    """What git prints."""
    done = subprocess.run(
        ["git", *args], cwd=at, env={**os.environ, **WHO}, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def tests_of(text: str) -> list[str]:
    """The names of a file's test functions."""
    return re.findall(r"(?m)^def (test_\w+)", text)


def make_row(data: dict[str, Any], instance: dict[str, Any], work: Path, out: Path) -> dict[str, Any]:
    """Commit the program with the instance's bug on a branch of its own; the row that asks to mend it."""
    repository = data["repositories"][instance["repo"]]
    files: dict[str, str] = dict(repository["files"])
    (test_path,) = [path for path in files if path.startswith("tests/")]
    source, right, bug = files[instance["file"]], instance["right"], instance["bug"]
    if source.count(right) != 1:
        raise SystemExit(f"{instance['instance_id']}: {right!r} must stand in {instance['file']} once")
    tree = work / instance["instance_id"]
    for path, text in {**files, instance["file"]: source.replace(right, bug)}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    (tree / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    git("init", "-q", "-b", instance["instance_id"], ".", at=tree)
    git("add", "-A", at=tree)
    git("commit", "-q", "-m", "As it is when the issue is opened", at=tree)
    base_commit = git("rev-parse", "HEAD", at=tree).strip()
    bare = out / "repos" / f"{instance['repo']}.git"
    bare.mkdir(parents=True, exist_ok=True)
    git("init", "-q", "--bare", "-b", instance["instance_id"], ".", at=bare)
    git("push", "-q", "--force", str(bare.resolve()), "HEAD", at=tree)
    (tree / instance["file"]).write_text(source)
    patch = git("diff", at=tree)
    git("checkout", "-q", ".", at=tree)
    (tree / test_path).write_text(files[test_path] + "\n\n" + instance["test"])
    test_patch = git("diff", at=tree)
    return {
        "instance_id": instance["instance_id"],
        "repo": instance["repo"],
        "version": repository["version"],
        "base_commit": base_commit,
        "problem_statement": instance["problem_statement"],
        "patch": patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": [f"{test_path}::{name}" for name in tests_of(instance["test"])],
        "PASS_TO_PASS": [f"{test_path}::{name}" for name in tests_of(files[test_path])],
    }


def passing(row: dict[str, Any], out: Path, *, solved: bool) -> set[str]:
    """The tests that pass at a row's commit with its test patch, and with its solution if `solved`."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        git("clone", "-q", str((out / "repos" / f"{row['repo']}.git").resolve()), ".", at=tree)
        git("checkout", "-q", row["base_commit"], at=tree)
        for patch in [row["test_patch"], *([row["patch"]] if solved else [])]:
            (tree / ".git" / "patch").write_text(patch)
            git("apply", str(tree / ".git" / "patch"), at=tree)
        done = subprocess.run(TEST_COMMAND, cwd=tree, capture_output=True, text=True, check=False, timeout=120)
    return set(re.findall(r"(?m)^PASSED (\S+)", done.stdout))


def check(row: dict[str, Any], out: Path) -> None:
    """Exit when a row doesn't do what it says."""
    fail, stay = set(row["FAIL_TO_PASS"]), set(row["PASS_TO_PASS"])
    before, after = passing(row, out, solved=False), passing(row, out, solved=True)
    if before & fail or not stay <= before or not (fail | stay) <= after:
        raise SystemExit(f"{row['instance_id']}: passed {sorted(before)} before the solution, {sorted(after)} with it")


def main() -> None:
    """Make the set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".polynya/swe_gym"), help="where to write")
    parser.add_argument("--check", action="store_true", help="run every row's tests before and after its solution")
    options = parser.parse_args()
    data = yaml.safe_load((HERE / "instances.yaml").read_text())
    with tempfile.TemporaryDirectory() as work:
        rows = [make_row(data, instance, Path(work), options.out) for instance in data["instances"]]
    (options.out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if options.check:
        for row in rows:
            check(row, options.out)
    repos = len({row["repo"] for row in rows})
    print(f"{options.out / 'rows.jsonl'}: {len(rows)} issues in {repos} repositories" + ", checked" * options.check)


if __name__ == "__main__":
    main()
