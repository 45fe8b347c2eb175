"""What a storm prints at its end."""

from __future__ import annotations

from tests.chaos.checks import judge
from tests.chaos.fixtures import sound
from tests.chaos.log import DeadLetter
from tests.chaos.report import SHOWN, Facts, summary

FACTS = Facts(
    seed=7,
    sessions=2,
    duration_s=61.4,
    root="/somewhere",
    hits={("proxy-1", "kill"): 2, ("worker-1", "freeze"): 1},
    left_out=1,
    restarts=3,
)


def test_a_clean_storm_says_what_was_done() -> None:
    """Seed, hits by part, ends, calls and their fates, take-overs, deliveries and the place of the logs."""
    seen = sound()
    text = summary(FACTS, seen, judge(seen))
    for part in (
        "seed 7: 2 sessions in 61 s",
        "hits: kill 2, freeze 1; 1 left out, 3 restarts",
        "by part: proxy-1 2, worker-1 1",
        "sessions: completed 2; by attempts: 1 1, 2 1",
        "leases: 3 opened, 0 expired, 0 take-overs",
        "calls: 6 (finished 6)",
        "counted: trained 5, superseded_attempt 1, context 0",
        "2 with a trajectory; 1 groups at the trainer",
        "/somewhere",
    ):
        assert part in text
    assert text.endswith("no violation")


def test_violations_are_listed_with_the_way_to_repeat_them() -> None:
    """Each violation is a line, up to a bound, then the command with the seed."""
    seen = sound()
    seen.log.dead.extend(DeadLetter("t", "r", str(n)) for n in range(SHOWN + 5))
    text = summary(FACTS, seen, judge(seen))
    assert f"{SHOWN + 5} violations:" in text
    assert text.count("dead_letters_are_empty") == SHOWN
    assert "… and 5 more" in text
    assert text.endswith("make chaos SEED=7 SESSIONS=2")
