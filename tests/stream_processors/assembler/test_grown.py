"""The cache of growing leases: bounded, and the ones touched longest ago go first."""

from __future__ import annotations

from stream_processors.assembler.grown import GrownLeases
from stream_processors.builders import Lease
from tests.stream_processors.helpers import call


def lease(tokens: int = 1) -> Lease:
    return Lease([call(1, [1] * tokens, [2])])


def test_what_is_held_is_bounded_by_bytes() -> None:
    """Three fit, the fourth sends the one away that was touched longest ago."""
    grown = GrownLeases(most_bytes=3 * lease().size_bytes)
    for name in "abc":
        grown.put(name, "1", lease())
    grown.put("a", "1", lease())
    grown.put("d", "1", lease())
    assert {name for name in "abcd" if grown.get(name, "1")} == {"a", "c", "d"}


def test_one_that_is_too_large_is_not_held() -> None:
    """It is read from the kept records when it closes."""
    grown = GrownLeases(most_bytes=1000)
    grown.put("a", "1", lease(10_000))
    assert grown.get("a", "1") is None


def test_dropping_makes_room() -> None:
    """A closed lease doesn't count any more; dropping it twice is nothing."""
    grown = GrownLeases(most_bytes=lease().size_bytes)
    grown.put("a", "1", lease())
    grown.drop("a", "1")
    grown.drop("a", "1")
    grown.put("b", "1", lease())
    assert grown.get("b", "1") is not None
    grown.clear()
    assert grown.get("b", "1") is None
