"""Reading git's diffs: sections, paths, and what is dropped."""

from __future__ import annotations

import pytest

from stage_workers.evaluators import swe_repos
from stage_workers.evaluators.patches import paths_of, sections, without
from stage_workers.evaluators.swe_repos import command_of, rule_of

MODIFIED = b"diff --git a/src/a b.py b/src/a b.py\nindex 1..2 100644\n--- a/src/a b.py\n+++ b/src/a b.py\n@@ -1 +1 @@\n-x\n+diff --git a/no b/no\n"
ADDED = (
    b"diff --git a/new.py b/new.py\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n"
)
DELETED = b"diff --git a/old.py b/old.py\ndeleted file mode 100644\nindex 1..0\n--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
EMPTY = b"diff --git a/pkg/__init__.py b/pkg/__init__.py\nnew file mode 100644\nindex 0000000..e69de29\n"
RENAMED = b"diff --git a/a.py b/b.py\nsimilarity index 100%\nrename from a.py\nrename to b.py\n"
QUOTED = b'diff --git "a/t\\tab.py" "b/t\\tab.py"\nindex 1..2 100644\n--- "a/t\\tab.py"\n+++ "b/t\\tab.py"\n@@ -1 +1 @@\n-x\n+y\n'
BINARY = b"diff --git a/x.pyc b/x.pyc\nnew file mode 100644\nindex 0..1\nGIT binary patch\nliteral 3\nKcmZ\n\nliteral 0\nHcmV?d00001\n\n"
CACHED = b"diff --git a/p/__pycache__/m.txt b/p/__pycache__/m.txt\nnew file mode 100644\n--- /dev/null\n+++ b/p/__pycache__/m.txt\n@@ -0,0 +1 @@\n+x\n"


@pytest.mark.parametrize(
    ("section", "paths"),
    [
        (MODIFIED, ("src/a b.py", "src/a b.py")),
        (ADDED, (None, "new.py")),
        (DELETED, ("old.py", None)),
        (EMPTY, (None, "pkg/__init__.py")),
        (RENAMED, ("a.py", "b.py")),
        (QUOTED, ("t\tab.py", "t\tab.py")),
        (BINARY, (None, "x.pyc")),
    ],
)
def test_paths(section: bytes, paths: tuple[str | None, str | None]) -> None:
    """Old and new path of each kind of section."""
    assert paths_of(section) == paths


def test_sections_are_whole() -> None:
    """A diff is cut at its files' headers and nowhere else."""
    parts = [MODIFIED, ADDED, BINARY, RENAMED]
    assert list(sections(b"".join(parts))) == parts
    assert list(sections(b"no diff at all")) == []


def test_what_is_dropped() -> None:
    """Compiled files and caches go, by name or by the folder that they are in; the rest stays byte for byte."""
    dropped = ("__pycache__", "*.pyc")
    assert without(MODIFIED + BINARY + CACHED + ADDED, dropped) == MODIFIED + ADDED


@pytest.mark.parametrize(
    ("repo", "command"),
    [
        ("nobody/knows", "pytest -rA tests/test_x.py"),
        (
            "django/django",
            "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 test_x",
        ),
        ("python/mypy", "pytest -n0 -rA -k 'testOne or testTwo'"),
        ("getmoto/moto", "pytest -n0 -rA tests/test_x.py"),
    ],
)
def test_commands(repo: str, command: str) -> None:
    """The tests of a patch are named as each repository's runner wants them; data files aren't tests."""
    patch = (
        b"diff --git a/tests/test_x.py b/tests/test_x.py\n--- a/tests/test_x.py\n+++ b/tests/test_x.py\n@@ -1 +1,2 @@\n"
        b"+[case testOne]\n+[case testTwo]\ndiff --git a/tests/data.json b/tests/data.json\n--- a/tests/data.json\n"
        b"+++ b/tests/data.json\n@@ -1 +1 @@\n-1\n+2\n"
    )
    assert swe_repos.test_files(patch) == ["tests/test_x.py"]
    assert command_of(rule_of(repo), patch) == command


def test_without_a_test_patch_the_named_tests_say_where() -> None:
    """Rows without a test patch are tested in the files of the tests that they name."""
    assert (
        command_of(rule_of("x/y"), b"", ["b/test_b.py::t", "a.py::t", "b/test_b.py::u"])
        == "pytest -rA a.py b/test_b.py"
    )
