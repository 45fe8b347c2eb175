"""A fresh runtime for the evaluator: prepared meanwhile, tried again once, always thrown away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from schemas.records import Boundary, Status
from schemas.task import RuntimeSpec, TaskSpec
from stage_workers.errors import StageFault
from stage_workers.fresh import FreshRuntime
from stage_workers.runtimes import ExecResult, Runtime, RuntimeFault

BASE = {"instruction": "Do it", "harness": {"name": "shell", "options": {"command": "true"}}}


@dataclass
class FakeRuntime:
    """Notes what is done in it; `gate` holds its start back."""

    name: str
    spec: RuntimeSpec
    world: FakeWorld
    said: list[str] = field(default_factory=list)
    is_stopped: bool = False

    async def start(self) -> None:
        await self.world.gate.wait()
        if self.world.faults:
            raise RuntimeFault(self.world.faults.pop(0))

    async def exec(self, argv: list[str], *, timeout_s: float, **_: Any) -> ExecResult:
        self.said.append(argv[-1])
        code = 1 if argv[-1] == "false" else 0
        return ExecResult(exit_code=code, timed_out=False, stdout=b"", stderr=b"no", duration_s=0)

    async def stop(self) -> None:
        self.is_stopped = True


class FakeWorld:
    """A factory of runtimes, with all that it made."""

    def __init__(self, *faults: str, is_open: bool = True) -> None:
        self.faults = list(faults)
        self.made: list[FakeRuntime] = []
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    def __call__(self, spec: RuntimeSpec, name: str) -> Runtime:
        self.made.append(FakeRuntime(name, spec, self))
        return cast("Runtime", self.made[-1])


def fresh(world: FakeWorld, **task: Any) -> FreshRuntime:
    return FreshRuntime(world, TaskSpec.model_validate(BASE | task), "s1.eval")


async def test_prepared_meanwhile() -> None:
    """It is under way before anybody waits for it, by `eval_prepare`, in a runtime as the evaluator asks for."""
    world = FakeWorld(is_open=False)
    evaluator = {"name": "command", "options": {"command": "x"}, "runtime": {"kind": "docker", "image": "tests:1"}}
    place = fresh(world, prepare=[{"exec": "for the agent"}], eval_prepare=[{"exec": "for me"}], evaluator=evaluator)
    place.begin()
    await asyncio.sleep(0)
    assert [(made.name, made.spec.image) for made in world.made] == [("s1.eval", "tests:1")]
    waiting = asyncio.ensure_future(place.ready())
    world.gate.set()
    assert cast("Any", await waiting).said == ["for me"]
    await place.discard()
    assert world.made[0].is_stopped


async def test_without_steps_of_its_own_it_is_like_the_session_s() -> None:
    """`prepare` runs there again, in a runtime of the session's kind."""
    world = FakeWorld()
    place = fresh(world, prepare=[{"exec": "for the agent"}], runtime={"kind": "local", "pids": 7})
    assert cast("Any", await place.ready()).said == ["for the agent"]
    assert world.made[0].spec.pids == 7
    await place.discard()


async def test_tried_once_more() -> None:
    """A registry's hiccup during the run doesn't cost the grading; a second one does."""
    world = FakeWorld("hiccup")
    place = fresh(world)
    place.begin()
    await place.ready()
    assert [made.name for made in world.made] == ["s1.eval", "s1.eval2"]
    await place.discard()
    assert all(made.is_stopped for made in world.made)
    again = fresh(FakeWorld("hiccup", "and another"))
    with pytest.raises(StageFault, match="the evaluator's runtime: and another") as caught:
        await again.ready()
    assert caught.value.boundary is Boundary.SANDBOX
    await again.discard()


async def test_a_step_that_fails_is_the_evaluator_s() -> None:
    """`eval_prepare` belongs to the grading."""
    place = fresh(FakeWorld(), eval_prepare=[{"exec": "false"}])
    with pytest.raises(StageFault, match=r"eval_prepare\[0\] exited with 1: no") as caught:
        await place.ready()
    assert caught.value.boundary is Boundary.EVALUATOR
    await place.discard()


async def test_its_budget() -> None:
    """A runtime that doesn't come up is a time-out."""
    world = FakeWorld(is_open=False)
    place = fresh(world, budgets={"init_s": 0.05})
    with pytest.raises(StageFault, match=r"wasn't ready within budgets\.init_s") as caught:
        await place.ready()
    assert caught.value.status is Status.TIMEOUT
    await place.discard()
    assert all(made.is_stopped for made in world.made)


async def test_discarded_half_made() -> None:
    """A run that never gets to its grading leaves nothing behind, whatever state the preparation is in."""
    world = FakeWorld(is_open=False)
    place = fresh(world)
    place.begin()
    await asyncio.sleep(0)
    await place.discard()
    await place.discard()
    assert [made.is_stopped for made in world.made] == [True]
    failed = fresh(FakeWorld("hiccup"))
    failed.begin()
    await asyncio.sleep(0.01)
    await failed.discard()


async def test_who_waits_may_be_cancelled() -> None:
    """A cancelled wait leaves the preparation to `discard`."""
    world = FakeWorld(is_open=False)
    place = fresh(world)
    place.begin()
    waiting = asyncio.ensure_future(place.ready())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    world.gate.set()
    await place.ready()
    await place.discard()
