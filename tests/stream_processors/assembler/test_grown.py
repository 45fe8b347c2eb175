"""The cache of growing leases: bounded, and the ones touched longest ago go first."""

from __future__ import annotations

from stream_processors.assembler.grown import RECORD_BYTES, GrownLeases
from stream_processors.builders import Lease


def test_what_is_held_is_bounded_by_bytes() -> None:
    """Three fit, the fourth sends the one away that was touched longest ago."""
    grown = GrownLeases(most_bytes=4 * RECORD_BYTES)
    for name in "abca":
        grown.put(name, "1", Lease(), 0)
    grown.put("d", "1", Lease(), 0)
    assert {name for name in "abcd" if grown.get(name, "1")} == {"a", "c", "d"}


def test_a_lease_counts_all_its_records() -> None:
    """One that grows sends the others away, in the end itself: it is read from the kept records when it closes."""
    grown = GrownLeases(most_bytes=10 * RECORD_BYTES)
    grown.put("other", "1", Lease(), 0)
    for _ in range(10):
        grown.put("a", "1", Lease(), 0)
    assert grown.get("other", "1") is None
    assert grown.get("a", "1") is not None
    grown.put("a", "1", Lease(), 100_000)
    assert grown.get("a", "1") is None


def test_dropping_makes_room() -> None:
    """A closed lease doesn't count any more; dropping it twice is nothing."""
    grown = GrownLeases(most_bytes=RECORD_BYTES)
    grown.put("a", "1", Lease(), 0)
    grown.drop("a", "1")
    grown.drop("a", "1")
    grown.put("b", "1", Lease(), 0)
    assert grown.get("b", "1") is not None
    grown.clear()
    assert grown.get("b", "1") is None
