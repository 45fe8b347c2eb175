"""How the repositories of the SWE benchmarks are tested: the command and the form of its output, as data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from stage_workers.evaluators.patches import paths_of, sections

# Files of a test patch that no runner takes as an argument.
_NO_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class TestRule:
    """A command, to which the tests are added, and the parser of what it prints."""

    __test__ = False  # not for pytest

    command: str
    parser: str = "pytest"
    tests: str = "files"
    """How tests are named: `files`, Django's `modules`, mypy's `cases` (names in the patch), or `none`."""


DEFAULT = TestRule("pytest -rA")

RULES: dict[str, TestRule] = {
    # SWE-bench
    "astropy/astropy": TestRule("pytest -rA -vv -o console_output_style=classic --tb=no"),
    "django/django": TestRule(
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1", "django", "modules"
    ),
    "matplotlib/matplotlib": TestRule("pytest -rA", "matplotlib"),
    "mwaskom/seaborn": TestRule("pytest --no-header -rA"),
    "psf/requests": TestRule("pytest -rA", "pytest_options"),
    "pydicom/pydicom": TestRule("pytest -rA", "pytest_options"),
    "pylint-dev/pylint": TestRule("pytest -rA", "pytest_options"),
    "sphinx-doc/sphinx": TestRule("tox --current-env -epy39 -v --"),
    "sympy/sympy": TestRule(
        "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose", "sympy"
    ),
    # SWE-Gym, whose 293 rows are SkyRL-v0-293
    "getmoto/moto": TestRule("pytest -n0 -rA"),
    "python/mypy": TestRule("pytest -n0 -rA", tests="cases"),
    "conan-io/conan": TestRule("pytest -n0 -rA"),
    "iterative/dvc": TestRule("pytest -rA"),
    "dask/dask": TestRule("pytest -n0 -rA --color=no"),
    "pandas-dev/pandas": TestRule("pytest -rA --tb=long"),
    "pydantic/pydantic": TestRule("pytest -rA --tb=short -vv -o console_output_style=classic --no-header"),
    "facebookresearch/hydra": TestRule("pytest -rA --tb=long"),
    "bokeh/bokeh": TestRule("pytest -rA -n0"),
    "modin-project/modin": TestRule("pytest -n0 -rA"),
    "Project-MONAI/MONAI": TestRule("pytest -rA"),
}


def rule_of(repo: str) -> TestRule:
    """How a repository is tested; pytest for one that isn't known."""
    return RULES.get(repo, DEFAULT)


def test_files(test_patch: bytes) -> list[str]:
    """The test files that a patch leaves behind."""
    paths = [new for section in sections(test_patch) if (new := paths_of(section)[1]) is not None]
    return [path for path in paths if not path.endswith(_NO_TESTS)]


def command_of(rule: TestRule, test_patch: bytes, named: Sequence[str] = ()) -> str:
    """The whole command: the rule's, and the tests of the patch; where it has none, those that are `named`."""
    files = test_files(test_patch) or sorted({name.partition("::")[0] for name in named if "::" in name})
    if rule.tests == "modules":
        modules = [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]
        return " ".join([rule.command, *map(shlex.quote, modules)])
    if rule.tests == "cases":
        cases = re.findall(r"\[case ([^\]]+)\]", test_patch.decode("utf-8", "replace"))
        return f"{rule.command} -k {shlex.quote(' or '.join(dict.fromkeys(cases)))}" if cases else rule.command
    return " ".join([rule.command, *map(shlex.quote, files)])
