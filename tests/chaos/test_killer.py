"""The killer: carries a plan out, and stops when it is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.chaos.killer import Killer
from tests.chaos.plan import Blow, How, Kind, Target

PROXY = Target("proxy-1", Kind.PROXY)
BROKER = Target("broker-1", Kind.BROKER)


class Dummy:
    """A fleet that notes its blows; brokers are always out of sync."""

    def __init__(self) -> None:
        self.struck: list[str] = []
        self.fails = False

    async def strike(self, blow: Blow) -> bool:
        if self.fails:
            raise RuntimeError("it can't be brought back")
        if blow.target is BROKER:
            return False
        await asyncio.sleep(blow.back_after_s)
        self.struck.append(blow.target.name)
        return True


async def test_a_plan_is_carried_out(tmp_path: Path) -> None:
    """Every blow is done in its time, or counted as left out; all of it stands in the journal."""
    fleet, said = Dummy(), list[str]()
    blows = [Blow(0.0, PROXY, How.FREEZE, 0.05), Blow(0.01, BROKER, How.KILL, 0.0), Blow(0.02, PROXY, How.KILL, 0.0)]
    killer = Killer(fleet, blows, tmp_path / "blows", said.append)
    async with asyncio.timeout(10):
        await killer.run(asyncio.Event())
    assert fleet.struck == ["proxy-1", "proxy-1"]
    assert killer.done == {("proxy-1", "freeze"): 1, ("proxy-1", "kill"): 1}
    assert killer.left_out == 1
    whats = [json.loads(line)["what"] for line in (tmp_path / "blows").read_text().splitlines()]
    assert sorted(whats) == ["begun", "begun", "begun", "left out", "over", "over"]
    assert len(said) == 4


async def test_a_stop_waits_for_the_victims(tmp_path: Path) -> None:
    """No blow begins after the stop, and who was hit before is back when it returns."""
    fleet, stop = Dummy(), asyncio.Event()
    blows = [Blow(0.0, PROXY, How.FREEZE, 0.1), Blow(60.0, PROXY, How.KILL, 0.0)]
    running = asyncio.create_task(Killer(fleet, blows, tmp_path / "blows", lambda _: None).run(stop))
    while not (tmp_path / "blows").exists():
        await asyncio.sleep(0.005)
    stop.set()
    async with asyncio.timeout(10):
        await running
    assert fleet.struck == ["proxy-1"]


async def test_a_victim_that_doesnt_come_back_ends_the_storm(tmp_path: Path) -> None:
    """What a blow raised isn't swallowed."""
    fleet = Dummy()
    fleet.fails = True
    killer = Killer(fleet, [Blow(0.0, PROXY, How.KILL, 0.0)], tmp_path / "blows", lambda _: None)
    with pytest.raises(RuntimeError, match="brought back"):
        await killer.run(asyncio.Event())
