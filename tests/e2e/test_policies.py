"""Two policies on one fleet, each with a trainer that pushes while sessions run; and a trainer that froze and was superseded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bus import Bus
from compose.cpu_engine.tiny_model import ensure_tiny_model
from compose.engines import add_engine
from schemas.arrays import unpack_ids, unpack_logprobs, unpack_mask
from schemas.records import PolicyEvent, PolicyEventType, ScoredTrajectory, Trace
from tests.e2e.engine import ROOT, running_pair
from tests.e2e.stack import Stack
from tests.trainer_sink.policies.test_frozen import is_stopped
from trainer_sink.policies import PolicyWriter
from trainer_sink.policies.fence import MAX_AGE_S

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(600)]

POLICIES = ("default", "second")
SECOND_FROM = 100
"""Versions of the second policy begin above it, so that a crossed one shows by its number alone."""
WITHIN_S = 200.0
PUSH_EVERY_S = 0.4
SCALE = 0.05
"""Of the noise in a perturbed checkpoint: logprobs move by far more than the tolerance."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Fleet:
    """A stack whose two engines serve a policy each."""

    stack: Stack
    urls: tuple[str, str]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One proxy, one worker, two engines; every process is gone afterwards."""
    state_dir = tmp_path_factory.mktemp("policies")
    models = (ensure_tiny_model(), ensure_tiny_model(seed=1))
    with running_pair(state_dir, models) as urls, Stack(state_dir, urls[0]).running() as stack:
        asyncio.run(_add_second(stack, urls[1]))
        yield Fleet(stack, urls)


async def _add_second(stack: Stack, url: str) -> None:
    async with stack.bus() as bus:
        await add_engine(bus, policy_id="second", url=url, kind="cpu")
        await bus.publish(
            PolicyEvent(policy_id="second", type=PolicyEventType.PUBLISHED, version=str(SECOND_FROM), trainer_id="past")
        )


def perturbed(root: Path, name: str, seed: int) -> Path:
    """A copy of the tiny model whose weights are a little off."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    path = root / name
    shutil.copytree(ensure_tiny_model(), path)
    rng = np.random.default_rng(seed)
    weights = load_file(path / "model.safetensors")
    moved = {key: (w + SCALE * rng.standard_normal(w.shape)).astype(w.dtype) for key, w in weights.items()}
    save_file(moved, path / "model.safetensors", metadata={"format": "pt"})
    return path


async def pushing(
    bus: Bus, policy_id: str, paths: list[Path], stop: asyncio.Event, ready: asyncio.Event
) -> dict[str, Path]:
    """Pushes one checkpoint after another until it is told to stop; version → checkpoint."""
    pushed: dict[str, Path] = {}
    async with PolicyWriter(bus, policy_id, f"trainer-{policy_id}") as writer:
        while not stop.is_set() or len(pushed) < len(paths):
            path = paths[len(pushed) % len(paths)]
            pushed[await writer.push(path, weights_digest=f"{policy_id}-{len(pushed)}")] = path
            ready.set()
            with contextlib.suppress(TimeoutError):  # a pace that leaves the machine to the sessions
                await asyncio.wait_for(stop.wait(), PUSH_EVERY_S)
    return pushed


async def test_two_trainers_two_policies_no_crossed_version(fleet: Fleet, tmp_path: Path) -> None:
    """Every trained token's version is one that its own policy's trainer pushed, and its logprob is this very checkpoint's.

    So it is within replies during which the weights changed, too: the border between two spans is where it is said to be.
    """
    stack = fleet.stack
    stop = asyncio.Event()
    paths = {
        policy: [perturbed(tmp_path, f"{policy}-{n}", 10 * at + n) for n in range(3)]
        for at, policy in enumerate(POLICIES)
    }
    ready = {policy: asyncio.Event() for policy in POLICIES}
    tasks = [
        stack.agent_task(f"turns=3 delay_ms=12 model={policy}", task_id=f"of-{policy}", policy_id=policy, num_samples=2)
        for policy in POLICIES
    ]
    # In a group: a trainer that fails ends the waiting, too.
    async with stack.bus() as bus, asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        trainers = {
            policy: group.create_task(pushing(bus, policy, paths[policy], stop, ready[policy])) for policy in POLICIES
        }
        await asyncio.gather(*(event.wait() for event in ready.values()))
        await asyncio.to_thread(stack.submit, *tasks, wait=True)
        stop.set()
    pushed = {policy: trainer.result() for policy, trainer in trainers.items()}
    assert all(len(versions) >= 3 for versions in pushed.values())
    assert not pushed["default"].keys() & pushed["second"].keys()
    assert min(map(int, pushed["second"])) == SECOND_FROM + 1
    changed = 0
    for policy in POLICIES:
        results = await stack.results(f"of-{policy}")
        assert {s.session_id for s in results if s.trajectory and s.policy_id == policy} == {
            s.session_id for s in results
        }
        assert len({s.session_id for s in results}) == 2
        changed += await asyncio.to_thread(recompute, results, pushed[policy])
    assert changed >= 1, "no weights changed during any call: nothing was proven of spans within a reply"


def recompute(results: list[ScoredTrajectory], versions: dict[str, Path]) -> int:
    """Checks every trained token against its own version's checkpoint; how many replies had several versions."""
    from compose.verify.scorer import Scorer

    scorers = {str(path): Scorer(path) for path in set(versions.values())}
    changed = 0
    for trace in {s.trajectory_id: t for s in results if s.trajectory for t in s.trajectory.traces}.values():
        turns = [turn for turn in trace.turns if turn.is_trained]
        assert len(turns) == 4
        for turn in turns:
            spans = turn.version_spans
            assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
            assert spans[-1].end == turn.end - turn.start
            changed += len(spans) > 1
            for span in spans:
                assert span.version in versions, f"version {span.version} isn't of this policy: {sorted(versions)}"
                check(trace, turn.start + span.start, turn.start + span.end, scorers[str(versions[span.version])])
    return changed


def check(trace: Trace, start: int, end: int, scorer: object) -> None:
    """Response tokens [start, end) have the logprobs of a forward pass with this checkpoint."""
    prompt, response = unpack_ids(trace.prompt_ids), unpack_ids(trace.response_ids)
    assert unpack_mask(trace.loss_mask)[start:end].all()
    positions = list(range(len(prompt) + start, len(prompt) + end))
    found = scorer.logprobs([*prompt.tolist(), *response.tolist()], positions, [1.0] * len(positions))  # type: ignore[attr-defined]
    assert unpack_logprobs(trace.logprobs)[start:end].tolist() == pytest.approx(found, abs=TOLERANCE)


async def test_a_frozen_trainer_is_fenced(fleet: Fleet, tmp_path: Path) -> None:
    """A real process that is stopped before a push, or within it, superseded, and continued.

    Its weights don't reach the engine. Stopped between its last look and the very request, they do: then it says so, the version
    stays unpublished, and the new owner puts the engine right.
    """
    moments = ["idle", "/pause_generation", "/update_weights_from_disk"]
    stack, url = fleet.stack, fleet.urls[0]
    old, new = perturbed(tmp_path, "old", 1), perturbed(tmp_path, "new", 2)
    report = tmp_path / "report"
    arguments = [stack.info.bootstrap, "default", url, str(old), str(report), *moments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    published: list[str] = []
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.trainer_sink.policies.frozen_trainer", *arguments],
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            for count, moment in enumerate(moments, start=1):
                report.with_name(f"go-{count - 1}").touch()
                await asyncio.to_thread(stack.until, lambda: is_stopped(process), WITHIN_S, f"stopped at {moment}")
                async with stack.bus() as bus, PolicyWriter(bus, "default", "new", pause_mode="in_place") as writer:
                    published.append(await writer.push(new))
                    await asyncio.sleep(MAX_AGE_S)  # frozen for longer than a reading of the timeline is believed
                    process.send_signal(signal.SIGCONT)
                    told = await asyncio.to_thread(reported, stack, report, count)
                    assert (told["by"], "pushed" in told) == ("new", False)
                    (engine,) = await writer.engines()
                    if moment == moments[-1]:
                        assert told["reached"] == [url]
                        assert engine.version == told["version"] not in published
                        assert await writer.sync() == [url]
                        (engine,) = await writer.engines()
                    else:
                        assert told["reached"] == []
                    assert (engine.version, engine.model_path) == (published[-1], str(new))
            assert await asyncio.to_thread(process.wait, 60) == 0
        finally:
            process.kill()
    events = [e for e in await stack.read("policy.timeline") if isinstance(e, PolicyEvent) and e.policy_id == "default"]
    said = [e.version for e in events if e.type is PolicyEventType.PUBLISHED]
    assert sorted(said, key=int) == said, "versions only grow"
    assert len(set(said)) == len(said)
    assert [e.version for e in events if e.type is PolicyEventType.PUBLISHED and e.trainer_id == "new"] == published


def reported(stack: Stack, report: Path, count: int) -> dict[str, object]:
    """The report's line of this number, once it is there."""
    stack.until(lambda: report.exists() and len(report.read_text().splitlines()) >= count, WITHIN_S, "a report")
    return dict(json.loads(report.read_text().splitlines()[count - 1]))
