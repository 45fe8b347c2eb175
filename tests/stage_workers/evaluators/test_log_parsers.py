"""What test runners print, read back: short golden logs, written as the runners write them."""

from __future__ import annotations

import pytest

from stage_workers.evaluators import log_parsers

PYTEST = """\
tests/test_a.py ..F                                                   [100%]
=================================== FAILURES ===================================
E       assert 1 == 2
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::TestB::test_two[a b-3]
SKIPPED [1] tests/test_a.py:12: no display
XFAIL tests/test_a.py::test_known - a bug of others
FAILED tests/test_a.py::test_three - assert 1 == 2
ERROR tests/test_b.py - ModuleNotFoundError: No module named 'x'
========================= 1 failed, 2 passed in 0.03s ==========================
"""
VERBOSE = """\
\x1b[32mtests/test_a.py::test_one PASSED\x1b[0m                              [ 50%]
tests/test_a.py::test_two[x y] FAILED                              [100%]
"""
DJANGO = """\
test_a (admin.tests.FirstTests) ... ok
test_b (admin.tests.FirstTests)
It says what it does. ... FAIL
test_c (admin.tests.FirstTests) ... skipped 'no database'
test_d (admin.tests.FirstTests) ... Testing against Django installed in '/x' (0 silenced).
ok
test_e (admin.tests.FirstTests) ... expected failure
======================================================================
ERROR: test_f (admin.tests.FirstTests)
----------------------------------------------------------------------
Ran 6 tests in 0.010s
"""
SYMPY = """\
sympy/core/tests/test_a.py[3]
test_one ok
test_two F
test_three E
________________________________________________________________________________
___________________ sympy/core/tests/test_a.py:test_two ____________________
"""


def test_pytest() -> None:
    """The short summary, names with blanks also by their first word, reasons left out."""
    assert log_parsers.pytest(PYTEST) == {
        "tests/test_a.py::test_one": "PASSED",
        "tests/test_a.py::TestB::test_two[a b-3]": "PASSED",
        "tests/test_a.py::TestB::test_two[a": "PASSED",
        "tests/test_a.py:12": "SKIPPED",
        "tests/test_a.py::test_known": "XFAIL",
        "tests/test_a.py::test_three": "FAILED",
        "tests/test_b.py": "ERROR",
    }


def test_verbose_and_coloured() -> None:
    """Lines of `-v`, through colours."""
    found = log_parsers.pytest(VERBOSE)
    assert found["tests/test_a.py::test_one"] == "PASSED"
    assert found["tests/test_a.py::test_two[x y]"] == "FAILED"


def test_the_worst_counts() -> None:
    """A test that prints a line like a runner's can't make a failure good."""
    log = "FAILED a.py::t - oh\nPASSED a.py::t\n"
    assert log_parsers.pytest(log) == {"a.py::t": "FAILED"}


def test_options_and_dots() -> None:
    """Parameters that are paths of the machine are cut; names without their file."""
    assert log_parsers.pytest_options("PASSED a.py::t[/home/me/data/x.dcm]") == {"a.py::t[/x.dcm]": "PASSED"}
    assert log_parsers.pytest_options("PASSED a.py::t[//x/y]") == {"a.py::t[//x/y]": "PASSED"}
    assert log_parsers.pytest_dotted("PASSED tests/a.py::TestB::test_c") == {"TestB.test_c": "PASSED"}


def test_matplotlib() -> None:
    """Two names of an enum are its numbers."""
    assert log_parsers.matplotlib("PASSED a.py::t[MouseButton.LEFT]") == {"a.py::t[1]": "PASSED"}


def test_django() -> None:
    """Unittest's lines, with docstrings as names and output between a name and its verdict."""
    assert log_parsers.unittest(DJANGO) == {
        "test_a (admin.tests.FirstTests)": "PASSED",
        "It says what it does.": "FAILED",
        "test_c (admin.tests.FirstTests)": "SKIPPED",
        "test_d (admin.tests.FirstTests)": "PASSED",
        "test_e (admin.tests.FirstTests)": "XFAIL",
        "test_f (admin.tests.FirstTests)": "ERROR",
    }


def test_sympy() -> None:
    """Words at the end of lines, and headlines of failures by file."""
    assert log_parsers.sympy(SYMPY) == {
        "test_one": "PASSED",
        "test_two": "FAILED",
        "test_three": "ERROR",
        "sympy/core/tests/test_a.py:test_two": "FAILED",
    }


def test_go_and_tap() -> None:
    """Two runners of other languages."""
    assert log_parsers.go("=== RUN TestA\n--- PASS: TestA (0.00s)\n    --- FAIL: TestA/x (0.1s)\n") == {
        "TestA": "PASSED",
        "TestA/x": "FAILED",
    }
    assert log_parsers.tap("1..3\nok 1 - reads\nnot ok 2 - writes\nok 3 - prints # SKIP no paper\n") == {
        "reads": "PASSED",
        "writes": "FAILED",
        "prints": "SKIPPED",
    }


@pytest.mark.parametrize("name", sorted(log_parsers.PARSERS))
def test_noise_is_nothing(name: str) -> None:
    """A log without tests gives none, and none of the parsers stumbles."""
    assert log_parsers.PARSERS[name]("Traceback (most recent call last):\n  boom\n\n\x1b[31m???\n") == {}
