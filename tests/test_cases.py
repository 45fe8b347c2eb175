"""Every numbered case from the field has a test, or a line that says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

WIRE = (
    *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32),
    *(34, 35, 37, 38, 40, 41, 43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71),
    *(73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89, 91, 92, 94, 95, 97, 98, 100, 101, 103, 104, 106, 107, 109, 110),
    *(112, 113, 115, 116, 118, 119, 121, 122, 124, 125, 127, 128, 130, 131, 133, 134, 136, 137, 139, 140, 142, 143),
)
MERGE = (
    *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41),
    *(43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77, 79, 80),
)
VECTORS = tuple(range(1, 14))


@pytest.mark.parametrize(("letter", "numbers"), [("b", WIRE), ("t", MERGE), ("v", VECTORS)])
def test_every_case_has_a_test_or_a_reason(letter: str, numbers: tuple[int, ...]) -> None:
    """A number without a test stands in the list of cases that don't apply, and no case stands in both."""
    sources = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    tested = {int(n) for n in re.findall(rf"def test_{letter}(\d+)_", sources)}
    untested = (TESTS / "cases_not_applicable.md").read_text().split("## Tested in part", 1)[0]
    excused = {int(n) for n in re.findall(rf"^\| {letter.upper()}(\d+) \|", untested, re.MULTILINE)}
    assert set(numbers) - tested == excused
