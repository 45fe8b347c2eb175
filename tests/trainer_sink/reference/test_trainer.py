"""The trainer's loop on the bus in memory, with an engine that keeps what it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.records import BatchConsumed, PolicyEvent, PolicyEventType
from tests.trainer_sink.policies.fake_engine import FakeEngine, serving
from tests.trainer_sink.reference.rollouts import sampled_group
from tests.trainer_sink.scored import POLICY
from trainer_sink.policies import PolicyWriter, SupersededError
from trainer_sink.reference import (
    CheckpointError,
    GrpoSettings,
    LogprobMismatchError,
    RunInUseError,
    StepReport,
    TrainReport,
    train_grpo,
)
from trainer_sink.reference.metrics import read_reports

DEADLINE_S = 60.0


@pytest.fixture
def settings(model_dir: Path, tmp_path: Path) -> GrpoSettings:
    """Two groups a step."""
    return GrpoSettings(
        model=model_dir,
        output_dir=tmp_path / "run",
        policy_id=POLICY,
        groups_per_step=2,
        warmup_steps=0,
        until_idle_s=DEADLINE_S,
        plot=False,
    )


async def offer(bus: MemoryBus, names: str, weights: Path, version: str) -> None:
    """Groups with these one-letter names, sampled by these weights."""
    for name in names:
        for record in sampled_group(name, weights, version):
            await bus.publish(record)


async def run(bus: MemoryBus, settings: GrpoSettings, **more: Any) -> TrainReport:
    """A run that must end."""
    return await asyncio.wait_for(train_grpo(bus, settings, **more), DEADLINE_S)


def batches(bus: MemoryBus) -> list[BatchConsumed]:
    """What was said to be trained, in order."""
    found = [d.decode() for d in bus.records("trainer.consumed")]
    return [r for r in found if isinstance(r, BatchConsumed) and not r.is_interim]


def published(bus: MemoryBus) -> list[str]:
    """The versions on the timeline."""
    events = [d.decode() for d in bus.records("policy.timeline")]
    return [e.version for e in events if isinstance(e, PolicyEvent) and e.type is PolicyEventType.PUBLISHED]


async def test_the_loop_closes(bus: MemoryBus, engine: FakeEngine, settings: GrpoSettings) -> None:
    """Each step's groups are sampled from the weights that the engine got after the one before: versions grow, logprobs agree, lines stand."""
    names = iter(("ab", "cd", "ef"))
    told: list[StepReport] = []
    offers: list[asyncio.Task[None]] = []

    def go_on(report: StepReport) -> None:
        told.append(report)
        if rest := next(names, ""):
            offers.append(asyncio.create_task(offer(bus, rest, Path(engine.path), engine.version)))

    await offer(bus, next(names), settings.model, "1")
    report = await run(bus, settings.model_copy(update={"max_steps": 3}), on_step=go_on)
    assert (report.reason, report.version, [r.step for r in told]) == ("max_steps", "4", [1, 2, 3])
    assert published(bus) == ["1", "2", "3", "4"]
    assert [(r.from_version, r.version) for r in told] == [("1", "2"), ("2", "3"), ("3", "4")]
    assert report.max_logprob_diff < 1e-5
    assert all(r.checked_tokens >= r.tokens > 0 and r.staleness_max == 0 for r in told)
    assert read_reports(settings.output_dir / "metrics.jsonl") == told
    assert (engine.version, engine.path) == ("4", str(report.checkpoint))
    assert (Path(engine.path) / "tokenizer.json").read_text() == "{}"
    told_groups = [set(b.groups) for b in batches(bus)]
    assert told_groups == [{ids.group_id(n) for n in pair} for pair in ("ab", "cd", "ef")]


async def test_engines_with_a_key(bus: MemoryBus, settings: GrpoSettings, tmp_path: Path) -> None:
    """The key comes from a file; one that says nothing, or isn't there, is refused before anything begins."""
    file = tmp_path / "key"
    for text, why in ((None, "can't be read"), (" \n", "is empty")):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ValueError, match=why):
            GrpoSettings(**{**settings.model_dump(), "engine_key_file": file})
    file.write_text("k\n")
    async with serving(FakeEngine(key="k")) as engine:
        keyed = settings.model_copy(update={"engines": (engine.url,), "engine_key_file": file, "max_steps": 1})
        await offer(bus, "ab", settings.model, "1")
        assert (await run(bus, keyed)).version == "2"
    assert engine.version == "2"


async def test_a_kill_at_any_point_trains_every_group_once(
    bus: MemoryBus, engine: FakeEngine, settings: GrpoSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between saving and pushing, and between pushing and publishing: the weights are those of an undisturbed run, versions only grow."""
    await offer(bus, "abcdef", settings.model, "1")
    alone = settings.model_copy(update={"max_steps": 3, "push": False, "trainer_id": "alone"})
    undisturbed = await run(bus, alone.model_copy(update={"output_dir": settings.output_dir.parent / "alone"}))
    push = PolicyWriter.push
    pushes = 0

    async def killed(self: PolicyWriter, path: Path, *, weights_digest: str = "") -> str:
        nonlocal pushes
        pushes += 1
        if pushes == 2:
            raise ConnectionAbortedError("killed before the push")
        version = await push(self, path, weights_digest=weights_digest)
        if pushes == 4:
            raise ConnectionAbortedError("killed after the push")
        return version

    monkeypatch.setattr(PolicyWriter, "push", killed)
    disturbed = settings.model_copy(update={"max_steps": 3})
    for _ in range(2):
        with pytest.raises(ConnectionAbortedError):
            await run(bus, disturbed)
    report = await run(bus, disturbed)
    assert report.rewards == undisturbed.rewards
    assert report.checkpoint is not None
    assert undisturbed.checkpoint is not None
    weights = [(r.checkpoint / "model.safetensors").read_bytes() for r in (report, undisturbed)]
    assert weights[0] == weights[1]
    mine = {b.step: b for b in batches(bus) if b.trainer_id == settings.trainer_id}
    trained = sorted(g for b in mine.values() for g in b.groups)
    assert trained == sorted(ids.group_id(n) for n in "abcdef")
    assert all(b.groups == mine[b.step].groups for b in batches(bus) if b.trainer_id == settings.trainer_id)
    versions = [int(v) for v in published(bus)]
    assert versions == sorted(set(versions))
    assert [r.step for r in read_reports(settings.output_dir / "metrics.jsonl")] == [1, 2, 3]


async def test_a_step_without_a_difference_changes_nothing(
    bus: MemoryBus, engine: FakeEngine, settings: GrpoSettings
) -> None:
    """All rewards are the same: the groups are committed and counted, their logprobs compared, and the engines keep their version."""
    for name in "ab":
        for record in sampled_group(name, settings.model, "1", reward=0.5):
            await bus.publish(record)
    (step,) = (await run(bus, settings.model_copy(update={"max_steps": 1}))).steps
    assert (step.sequences, step.tokens, step.counts) == (0, 0, {"zero_variance": 2})
    assert (step.version, step.checked_tokens, step.reward) == ("1", 24, 0.5)
    assert published(bus) == ["1"]
    assert [b.step for b in batches(bus)] == [1]


async def test_a_superseded_trainer_stops(bus: MemoryBus, engine: FakeEngine, settings: GrpoSettings) -> None:
    """Another one claims the policy during the run: the next push is refused, says by whom, and the step isn't published."""
    await offer(bus, "ab", settings.model, "1")
    other = PolicyWriter(bus, POLICY, "other")
    waiting = asyncio.create_task(run(bus, settings))
    async with asyncio.timeout(DEADLINE_S):
        while not batches(bus):
            await asyncio.sleep(0.01)
    async with other:
        await offer(bus, "cd", settings.model, "1")
        with pytest.raises(SupersededError, match="other"):
            await waiting
    assert [b.step for b in batches(bus)] == [1]


async def test_an_idle_log_ends_the_run_with_what_there_is(bus: MemoryBus, settings: GrpoSettings) -> None:
    """One group of two has come: it is trained, and the run says why it ended."""
    await offer(bus, "a", settings.model, "1")
    report = await run(bus, settings.model_copy(update={"push": False, "until_idle_s": 0.5}))
    assert (report.reason, [r.groups for r in report.steps]) == ("idle", [1])


async def test_the_end_of_the_log_ends_the_run(bus: MemoryBus, settings: GrpoSettings) -> None:
    """Three groups in steps of two."""
    await offer(bus, "abc", settings.model, "1")
    report = await run(bus, settings.model_copy(update={"push": False, "until_end": True}))
    assert (report.reason, [r.groups for r in report.steps]) == ("end_of_log", [2, 1])


async def test_a_gain_ends_the_run(bus: MemoryBus, settings: GrpoSettings) -> None:
    """Against a given baseline five steps are needed, and no more are made."""
    await offer(bus, "abcdefghijkl", settings.model, "1")
    wanted = {"push": False, "groups_per_step": 1, "stop_at_gain": 0.01, "baseline": 0.0, "until_end": True}
    report = await run(bus, settings.model_copy(update=wanted))
    assert (report.reason, len(report.steps)) == ("gain", 5)
    assert report.gain == pytest.approx(sum(report.rewards) / 5)


async def test_stopping_leaves_half_a_step_for_later(bus: MemoryBus, settings: GrpoSettings) -> None:
    """The group that had come is not trained, and comes again."""
    stop = asyncio.Event()
    quiet = settings.model_copy(update={"push": False})
    await offer(bus, "a", settings.model, "1")
    waiting = asyncio.create_task(run(bus, quiet, stop=stop))
    async with asyncio.timeout(DEADLINE_S):
        while not bus.records("trainer.consumed"):
            await asyncio.sleep(0.01)
    stop.set()
    report = await waiting
    assert (report.reason, report.steps) == ("stopped", ())
    await offer(bus, "b", settings.model, "1")
    again = await run(bus, quiet.model_copy(update={"until_end": True}))
    assert [r.groups for r in again.steps] == [2]


async def test_foreign_logprobs_stop_the_run_when_asked(bus: MemoryBus, settings: GrpoSettings, tmp_path: Path) -> None:
    """The engine sampled with other weights than it says: nothing is trained, and the message tells where."""
    from tests.trainer_sink.reference.tiny import write_model

    other = tmp_path / "other"
    other.mkdir()
    await offer(bus, "ab", write_model(other, seed=3), "0")
    with pytest.raises(LogprobMismatchError, match="recomputed logprobs differ") as caught:
        await run(bus, settings.model_copy(update={"push": False, "on_mismatch": "stop"}))
    assert caught.value.max_diff > 1e-2
    assert batches(bus) == []


async def test_one_process_trains_in_a_directory(bus: MemoryBus, settings: GrpoSettings) -> None:
    """The second is refused, and a checkpoint of another trainer is, too."""
    quiet = settings.model_copy(update={"push": False})
    first = asyncio.create_task(run(bus, quiet.model_copy(update={"until_end": False})))
    async with asyncio.timeout(DEADLINE_S):
        while not bus.records("trainer.consumed"):
            await asyncio.sleep(0.01)
    with pytest.raises(RunInUseError, match="another process trains"):
        await run(bus, quiet)
    await offer(bus, "ab", settings.model, "1")
    async with asyncio.timeout(DEADLINE_S):
        while not batches(bus):
            await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    with pytest.raises(CheckpointError, match="use another output directory"):
        await run(bus, quiet.model_copy(update={"trainer_id": "somebody"}))
