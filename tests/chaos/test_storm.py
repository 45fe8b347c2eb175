"""Storms over a whole fleet: the short form of `make chaos`, and a dead broker together with a dead assembler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fleet import LEASE_TTL_S
from tests.chaos.plan import Blow, How, Kind, Target, draw, fleet_of
from tests.chaos.storm import Options, Outcome, storm

pytestmark = [pytest.mark.broker, pytest.mark.chaos, pytest.mark.deep, pytest.mark.timeout(560)]

SEED = 2844
"""Its first hundred seconds hit every kind of process but the engine, and freeze a worker and a proxy."""

SHORT = Options(seed=SEED, sessions=32, storm_s=100.0, calm_s=240.0)


def test_the_short_storm_hits_everything() -> None:
    """What CI runs leaves nothing out, or it would be worth less than it looks."""
    blows = draw(SHORT.seed, SHORT.storm_s, fleet_of(), lease_ttl_s=LEASE_TTL_S)
    assert {(b.target.kind, b.how) for b in blows} == {
        *((kind, How.KILL) for kind in Kind if kind is not Kind.ENGINE),
        (Kind.WORKER, How.FREEZE),
        (Kind.PROXY, How.FREEZE),
    }


def require_clean(outcome: Outcome) -> None:
    """Fail with the storm's own summary: the records behind it would fill pages."""
    if not outcome.verdict.is_clean:
        pytest.fail(outcome.summary, pytrace=False)


async def test_a_storm_of_kills_loses_repeats_and_leaves_nothing(tmp_path: Path) -> None:
    """Two minutes of SIGKILL and SIGSTOP over 32 sessions: every check on the log, the ledgers and the machine holds."""
    outcome = await storm(SHORT, tmp_path)
    require_clean(outcome)
    assert sum(outcome.facts.hits.values()) >= 8, outcome.summary


async def test_a_dead_broker_and_a_killed_assembler(tmp_path: Path) -> None:
    """The assembler dies twice while a broker is away, so its tables' changelogs may lag behind its committed offsets.

    What its tables lack then it reads again from the log: every call is counted, every session delivered once.
    """
    broker, assembler = Target("broker-1", Kind.BROKER), Target("assembler", Kind.ASSEMBLER)
    blows = (
        Blow(10.0, broker, How.KILL, 25.0),
        Blow(11.0, assembler, How.KILL, 0.5),
        Blow(26.0, assembler, How.KILL, 0.5),
        Blow(45.0, assembler, How.KILL, 0.5),
    )
    outcome = await storm(Options(seed=1, sessions=24, storm_s=100.0, calm_s=240.0, pi_share=0, blows=blows), tmp_path)
    require_clean(outcome)
    assert outcome.facts.hits == {("broker-1", "kill"): 1, ("assembler", "kill"): 3}, outcome.summary
