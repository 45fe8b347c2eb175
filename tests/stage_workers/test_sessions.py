"""What a worker holds, and how a session is taken away."""

from __future__ import annotations

import asyncio

import pytest

from schemas.records import SessionSpec, Stage
from schemas.task import TaskSpec
from stage_workers.errors import EndingKind, SessionOver
from stage_workers.sessions import Holdings, Session
from tests.stage_workers.world import task


def session(name: str = "s", attempt: int = 1, round_: int = 0, stage: Stage = Stage.INIT) -> Session:
    return Session(
        worker_id="w",
        incarnation="i",
        session_id=name,
        attempt=attempt,
        round=round_,
        spec=SessionSpec(),
        task=TaskSpec.model_validate(task()),
        expires_at=0,
        stage=stage,
    )


async def test_slots() -> None:
    """Each stage takes its own slots; INIT also READY's, and a sealed session still its run slot."""
    holdings = Holdings(init_slots=3, ready_slots=3, run_slots=3, postrun_slots=3)
    stages = [Stage.INIT, Stage.READY, Stage.RUNNING, Stage.SEALED, Stage.POSTRUN]
    for number, stage in enumerate(stages):
        holdings.add(session(str(number), stage=stage))
    free = (holdings.free_init, holdings.free_ready, holdings.free_run, holdings.free_postrun)
    assert free == (1, 1, 1, 2)
    assert len(holdings) == 5
    for held in list(holdings):
        holdings.remove(held)
    assert holdings.free_init == 3


async def test_find() -> None:
    """An attempt is found by its round, or by its newest."""
    holdings = Holdings(init_slots=3, ready_slots=3, run_slots=3, postrun_slots=3)
    first, second, third = session(round_=1), session(round_=2), session(attempt=2, round_=1)
    for one in (first, second, third):
        holdings.add(one)
    assert holdings.find("s", 1) is second
    assert holdings.find("s", 1, 1) is first
    assert holdings.find("s", 2) is third
    assert holdings.find("s", 3) is None


async def test_guard_gives_the_result() -> None:
    """Work that is done in time gives its result, also when the session ends in the same moment."""
    one = session()

    async def work() -> int:
        one.end(EndingKind.CANCELLED, "just now")
        return 7

    assert await one.guard(work()) == 7


async def test_guard_breaks_off() -> None:
    """Work is cancelled, and has ended, before the ending is raised."""
    one, steps = session(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("cleaned up")

    async with asyncio.timeout(10):
        task_ = asyncio.create_task(one.guard(work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        one.end(EndingKind.LOST, "gone")
        with pytest.raises(SessionOver, match="lost: gone"):
            await task_
    assert steps == ["cleaned up"]


@pytest.mark.parametrize("first", list(EndingKind))
@pytest.mark.parametrize("second", list(EndingKind))
async def test_stronger_ending_holds(first: EndingKind, second: EndingKind) -> None:
    """Of two endings the stronger one holds, whichever came first; of two equals the first."""
    one = session()
    one.end(first, "first")
    one.end(second, "second")
    assert one.ending is not None
    expected = second if second.strength > first.strength else first
    assert one.ending.kind is expected
    assert one.is_lost == (expected in {EndingKind.LOST, EndingKind.SHUTDOWN})


async def test_revive() -> None:
    """After a run that was cut short the session goes on, unless it is over for good."""
    one = session()
    one.end(EndingKind.DEADLINE, "late")
    one.revive()
    assert one.ending is None
    one.end(EndingKind.OVER, "ended")
    one.revive()
    assert one.ending is not None
