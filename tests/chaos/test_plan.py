"""The plan of a storm: repeatable, within its bounds, and hitting everything."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import plan
from tests.chaos.plan import Blow, How, Kind, Target, draw, fleet_of

FLEET = fleet_of()


def test_the_same_seed_gives_the_same_plan() -> None:
    """A storm can be repeated: its plan depends on nothing but its arguments."""
    assert draw(7, 600, FLEET, lease_ttl_s=6) == draw(7, 600, FLEET, lease_ttl_s=6)
    assert draw(7, 600, FLEET, lease_ttl_s=6) != draw(8, 600, FLEET, lease_ttl_s=6)


def test_a_longer_storm_begins_like_a_shorter_one() -> None:
    """A violation in a long storm can be looked for in its first minutes."""
    short, long = (draw(3, duration_s, FLEET, lease_ttl_s=6) for duration_s in (300, 1800))
    assert long[: len(short)] == short


def test_a_plan_doesnt_change_between_versions() -> None:
    """The first blows of seed 1 are what they were: a seed in a report stays worth something."""
    shown = [
        (round(b.at_s, 1), b.target.name, str(b.how), round(b.back_after_s, 1))
        for b in draw(1, 40, FLEET, lease_ttl_s=6)
    ]
    assert shown == EXPECTED


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_blows_keep_their_distance(seed: int) -> None:
    """Five to fifteen seconds apart; nobody is hit while away; one broker at a time; a freeze outlasts the lease."""
    blows = draw(seed, 900, FLEET, lease_ttl_s=6)
    gaps = [b.at_s - a.at_s for a, b in pairwise(blows)]
    assert all(gap >= 5.0 for gap in gaps)
    assert sum(gap > 15.0 for gap in gaps) == 0
    for index, blow in enumerate(blows):
        for later in blows[index + 1 :]:
            if later.target == blow.target:
                assert later.at_s >= blow.at_s + blow.back_after_s
            if later.target.kind is blow.target.kind is Kind.BROKER:
                assert later.at_s >= blow.at_s + blow.back_after_s + plan.BROKERS_APART_S
    assert all(b.back_after_s > 6 for b in blows if b.how is How.FREEZE)
    assert {b.target.kind for b in blows if b.how is How.FREEZE} <= plan.FREEZABLE


def test_a_long_storm_hits_every_process() -> None:
    """Twenty-five minutes leave nobody out, and freeze some."""
    blows = draw(20, 1500, FLEET, lease_ttl_s=6)
    assert {b.target for b in blows} == set(FLEET)
    assert any(b.how is How.FREEZE for b in blows)


def test_a_blow_reads_as_a_line() -> None:
    """What was done stands in the storm's log."""
    line = str(Blow(12.34, Target("proxy-2", Kind.PROXY), How.FREEZE, 9.0))
    assert line == "12.3 s: freeze proxy-2, thawed after 9.0 s"


EXPECTED = [
    (6.3, "broker-1", "kill", 8.3),
    (13.9, "proxy-2", "kill", 3.4),
    (26.8, "worker-1", "freeze", 13.8),
    (36.1, "assembler", "kill", 0.3),
]
