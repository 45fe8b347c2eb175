"""The staging simulation's own arithmetic, and that stages in pools keep run slots busier than one slot per session."""

from __future__ import annotations

from tests.bench.staging import ideal, jobs, shares
from tests.bench.staging_simulated import DEFAULTS, Job, World


def test_the_ideal_schedule_is_list_scheduling() -> None:
    """Two slots, three runs: the third starts where the first slot is free; nothing else takes time."""
    work = [Job(9, 4, 9), Job(9, 1, 9), Job(9, 3, 9)]
    assert ideal(work, 2) == 8 / (2 * 4)
    assert ideal(work[:1], 1) == 1.0


def test_a_seed_draws_the_same_sessions() -> None:
    """Within the stages' bounds."""
    assert jobs(50, 7) == jobs(50, 7) != jobs(50, 8)
    for job in jobs(50, 7):
        assert 20_000 <= job.init_ms <= 60_000
        assert 60_000 <= job.run_ms <= 600_000
        assert 10_000 <= job.evaluate_ms <= 300_000


async def test_every_session_ends_and_no_slot_is_used_twice() -> None:
    """The busy time is that of all runs, each once, and no more than the slots have."""
    work = jobs(12, 3)
    world = World(work, 1, is_staged=True)
    share = world.run()
    assert world.ended == 12
    assert world.busy_ms == sum(job.run_ms for job in work)
    assert 0 < share <= 1
    assert world.workers["w0"].places["running"] == DEFAULTS["run_slots"]


async def test_staged_beats_unstaged_and_nothing_beats_the_ideal() -> None:
    """On a short draw, where the beginning and the end weigh most."""
    found = shares(24, 1, seed=5)
    assert found.unstaged < found.staged <= found.ideal
    assert found.staged / found.ideal > 0.9
