"""The demo's run over a log in memory: a fleet and a trainer that are told what to give, all else as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from compose.cli.demo import _print_outcome
from compose.demo import learning
from compose.demo.learning import GROUPS_PER_STEP, SAMPLES, Plan, Shown, learn, model_dir
from schemas import ids
from schemas.records import Counts, ScoredTrajectory, Status, TaskRequest, Trace, Trajectory
from trainer_sink.reference import GrpoSettings, StepReport


def scored(task: TaskRequest, index: int, reward: float) -> ScoredTrajectory:
    """The result of one sample of a task."""
    session_id = ids.session_id(ids.group_id(task.task_id), index)
    trajectory = Trajectory(session_id=session_id, traces=[Trace()], counts=Counts(trainable_tokens=9))
    return ScoredTrajectory(
        session_id=session_id, task_id=task.task_id, status=Status.COMPLETED, reward=reward, trajectory=trajectory
    )


@asynccontextmanager
async def fleet(bus: MemoryBus, reward_of: Callable[[str], float], seen: list[TaskRequest]) -> AsyncIterator[None]:
    """Answers every task with its sessions' results at once."""

    async def work() -> None:
        async for delivery in bus.tail(["rollout.tasks"], start="earliest"):
            task = delivery.decode()
            assert isinstance(task, TaskRequest)
            seen.append(task)
            for index in range(task.num_samples):
                await bus.publish(scored(task, index, reward_of(task.task_id)))

    async with asyncio.TaskGroup() as group:
        working = group.create_task(work())
        yield
        working.cancel()


def trainer(bus: MemoryBus, rewards: list[float]) -> Callable[..., Any]:
    """Stands for `train_grpo`: a step whenever another step's groups' results are there, with these rewards."""

    async def train(
        given: MemoryBus,
        settings: GrpoSettings,
        *,
        on_step: Callable[[StepReport], None],
        stop: asyncio.Event,
    ) -> None:
        assert given is bus
        assert settings.push_at_start is False
        groups: set[str] = set()
        steps = 0
        async for delivery in bus.tail(["trajectory.scored"], start="earliest"):
            result = delivery.decode()
            assert isinstance(result, ScoredTrajectory)
            if "train" in result.task_id:
                groups.add(result.task_id)
            while len(groups) >= GROUPS_PER_STEP * (steps + 1) and not stop.is_set():
                steps += 1
                on_step(report(steps, rewards[steps - 1]))
                await asyncio.sleep(0.01)
            if stop.is_set() or steps == settings.max_steps:
                return

    return train


def report(step: int, reward: float) -> StepReport:
    """What the trainer says of a step."""
    return StepReport(
        step=step,
        version=str(step),
        from_version=str(step - 1),
        groups=GROUPS_PER_STEP,
        sessions=GROUPS_PER_STEP * SAMPLES,
        sequences=GROUPS_PER_STEP * SAMPLES,
        tokens=300,
        computed_tokens=900,
        reward=reward,
        reward_average=reward,
        gain=0.0,
        max_logprob_diff=step * 1e-6,
    )


def reward_of(task_id: str) -> float:
    """Held-out combinations are better after the training."""
    return 0.9 if "-after-" in task_id else 0.4


async def run(
    bus: MemoryBus,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    rewards: list[float],
    steps: int | None,
    **more: int,
) -> tuple[Any, list[ScoredTrajectory], list[TaskRequest], list[int]]:
    """The outcome, all results, the tasks in their order, and the steps that were shown."""
    monkeypatch.setattr(learning, "train_grpo", trainer(bus, rewards))
    monkeypatch.setattr(learning, "_load_torch", lambda: None)  # seconds, for a trainer that isn't there
    seen: list[TaskRequest] = []
    shown: list[int] = []
    plan = Plan(seed=3, policy_id="p", model=model_dir(), output_dir=tmp_path, steps=steps, **more)
    told = Shown(line=lambda _: None, step=lambda step, *_: shown.append(step.step))
    async with asyncio.timeout(30), fleet(bus, reward_of, seen):
        outcome, results = await learn(bus, plan, told, harness_version="1")
    return outcome, results, seen, shown


async def test_a_run_ends_with_the_step_that_reaches_the_gain(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """48 and 16 sessions before, six groups a step, 32 after; no step's tasks are out before the step before is done.

    The 48 are the first two steps, too: no session of them is in the gain, however good it was.
    """
    outcome, results, seen, shown = await run(
        memory_bus, monkeypatch, tmp_path, [1.0, 1.0] + [0.4] * 3 + [0.8] * 25, None
    )
    assert shown == list(range(1, 10))  # with the eighth it is 0.24 still
    assert (outcome.evaluation_steps, list(outcome.rewards[:2])) == (2, [1.0, 1.0])
    assert outcome.gain == pytest.approx(0.32)
    assert (outcome.baseline, outcome.held_out_before.reward) == (pytest.approx(0.4), pytest.approx(0.4))
    assert outcome.held_out_after.reward == pytest.approx(0.9)
    assert (outcome.trained.sessions, outcome.held_out_before.sessions) == (48, 16)
    assert outcome.held_out_after.sessions == 32
    assert outcome.sessions == len(results) == 48 + 16 + 7 * 24 + 32
    assert (outcome.lost, outcome.forks, outcome.failings()) == (0, 0, [])
    assert outcome.max_logprob_diff == pytest.approx(9e-6)
    assert 0 < outcome.reached_after_s <= outcome.seconds
    kinds = ["train" if "train" in task.task_id else task.task_id.split("-")[2] for task in seen]
    assert sorted(kinds[:20]) == ["before"] * 8 + ["train"] * 12  # of several partitions
    assert kinds[20:] == ["train"] * 42 + ["after"] * 8
    instructions = [task.spec["instruction"] for task in seen if "train" in task.task_id]
    assert len(set(instructions[:24])) == 24  # the evaluation's combinations aren't drawn again at once
    seeds = [task.spec["sampling"]["seed"] for task in seen]
    assert len(set(seeds)) == len(seeds)
    assert min(b - a for a, b in zip(sorted(seeds), sorted(seeds)[1:], strict=False)) >= 4  # room for a group's samples
    _print_outcome(outcome, tmp_path)
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")


async def test_a_run_without_a_gain_ends_and_says_so(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Thirty steps at most; the failing is named."""
    outcome, _, _, shown = await run(memory_bus, monkeypatch, tmp_path, [0.4] * 30, None)
    assert len(shown) == 30
    assert outcome.reached_after_s is None
    assert [text for text in outcome.failings() if "gain" in text] == outcome.failings()


async def test_a_bounded_run_makes_exactly_its_steps(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However good they are; the first is of the evaluation's 24 sessions, and the gain is that of the others."""
    outcome, results, _, shown = await run(
        memory_bus,
        monkeypatch,
        tmp_path,
        [0.4] + [0.9] * 10,
        3,
        evaluation_steps=1,
        held_out_before=1,
        held_out_after=1,
    )
    assert shown == [1, 2, 3]
    assert outcome.versions == ["1", "2", "3"]
    assert (outcome.trained.sessions, outcome.gain) == (24, pytest.approx(0.5))
    assert outcome.sessions == len(results) == 24 + 8 + 2 * 24 + 8
    assert outcome.failings(is_bounded=True) == []
