"""The sessions of a storm."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.load import draw_load, harnesses_of

JOURNALS = Path("/journals")


def test_the_same_seed_gives_the_same_load() -> None:
    """Groups, instructions and harnesses are drawn from the seed; only the time of asking differs."""
    one, two, other = (
        [(r.task_id, r.spec["instruction"], r.harness) for r in draw_load(seed, 40, JOURNALS).requests]
        for seed in (1, 1, 2)
    )
    assert one == two != other


def test_all_sessions_stand_in_groups() -> None:
    """So many sessions as were asked for, in groups of four, some of them Pi's; each has its id."""
    load = draw_load(3, 42, JOURNALS)
    assert load.sessions == 42
    assert [len(sessions) for sessions in load.expected.values()] == [4] * 10 + [2]
    assert len({s for sessions in load.expected.values() for s in sessions}) == 42
    assert harnesses_of(load.requests).keys() == {"pi", "shell"}
    assert harnesses_of(draw_load(3, 42, JOURNALS, pi_share=0).requests) == {"shell": 42}


def test_a_shell_session_journals_outside_of_its_runtime() -> None:
    """What the agent has received is kept where no kill takes it away."""
    (request,) = draw_load(3, 4, JOURNALS, pi_share=0).requests
    assert "/journals/$$" in request.spec["harness"]["options"]["command"]
