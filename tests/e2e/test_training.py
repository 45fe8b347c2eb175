"""The reference trainer on a whole stack: the CPU engine serves the demo's model, a small agent talks to it, one kill in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from schemas import ids
from schemas.records import BatchConsumed, PolicyEvent, PolicyEventType
from tests.e2e.stack import ROOT, Stack
from trainer_sink.reference.checkpoints import FOLDER, LATEST
from trainer_sink.reference.metrics import METRICS, read_reports

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(900)]

MODEL = ROOT / "compose" / "demo" / "model"
WITHIN_S = 300.0
# What is learned isn't the point here: any number, so that the sessions of a group differ.
ANY_REWARD = "od -An -N2 -tu2 /dev/urandom | awk '{print $1 / 65535}'"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose engine samples from a real model."""
    state_dir = tmp_path_factory.mktemp("training")
    with Stack(state_dir, "cpu", env={"POLYNYA_MODEL": str(MODEL)}).running() as stack:
        yield stack


def trainer(stack: Stack, out: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """`polynya train grpo` as a process of its own: three steps of two groups."""
    command = [
        sys.executable,
        "-m",
        "compose.cli.main",
        "train",
        "grpo",
        "--model",
        str(MODEL),
        "--output-dir",
        str(out),
    ]
    command += ["--groups-per-step", "2", "--max-steps", "3", "--until-idle-s", str(WITHIN_S), "--tensorboard"]
    env = {**os.environ, "POLYNYA_STATE_DIR": str(stack.state_dir), **stack.env}
    return subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)


def submit(stack: Stack, *names: str) -> None:
    """Groups of three sessions of the agent; a call ends after 24 tokens."""
    graded = {"name": "command", "options": {"command": ANY_REWARD, "score": "printed"}}
    more = {"num_samples": 3, "sampling": {"max_tokens": 24, "temperature": 1.0}, "evaluator": graded}
    stack.submit(*(stack.agent_task("say a word", task_id=name, **more) for name in names))


async def test_a_killed_trainer_goes_on_and_every_group_is_trained_once(stack: Stack, tmp_path: Path) -> None:
    """SIGKILL as soon as step 2 is on the disk: versions grow, logprobs agree with the engine's, no group is repeated or left out."""
    out = tmp_path / "run"
    log = tmp_path / "trainer.log"

    async def timeline() -> list[str]:
        events = [e for e in await stack.read("policy.timeline") if isinstance(e, PolicyEvent)]
        return [e.version for e in events if e.type is PolicyEventType.PUBLISHED]

    async def until_published(count: int, process: subprocess.Popen[bytes]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while len(await timeline()) < count:
                assert process.poll() is None, log.read_text()
                await asyncio.sleep(0.2)

    with log.open("wb") as file:
        first = trainer(stack, out, file)
        try:
            await until_published(1, first)  # the trainer's own weights, before the first group
            submit(stack, "a", "b")
            await until_published(2, first)
            submit(stack, "c", "d")
            latest = out / FOLDER / LATEST
            async with asyncio.timeout(WITHIN_S):
                while latest.read_text().strip() != "step-000002":
                    assert first.poll() is None, log.read_text()
                    await asyncio.sleep(0.005)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait(10)
        killed_at = await timeline()
        second = trainer(stack, out, file)
        try:
            await until_published(len(killed_at) + 1, second)
            submit(stack, "e", "f")
            assert await asyncio.to_thread(second.wait, WITHIN_S) == 0, log.read_text()
        finally:
            second.kill()
            second.wait(10)
    versions = [int(v) for v in await timeline()]
    assert versions == sorted(set(versions))
    consumed = [b for b in await stack.read("trainer.consumed") if isinstance(b, BatchConsumed) and not b.is_interim]
    by_step = {b.step: b.groups for b in consumed}
    assert all(b.groups == by_step[b.step] for b in consumed)
    assert sorted(g for groups in by_step.values() for g in groups) == sorted(ids.group_id(n) for n in "abcdef")
    reports = read_reports(out / METRICS)
    assert [r.step for r in reports] == [1, 2, 3]
    assert all(r.checked_tokens > 0 for r in reports), [r.to_json() for r in reports]
    assert max(r.max_logprob_diff for r in reports) <= 1e-4
    assert all(r.staleness_max == 0 for r in reports)
    assert (out / "rewards.png").stat().st_size > 1000
    assert len(list((out / "tensorboard").iterdir())) == 2
    served = json.loads((out / FOLDER / "step-000003" / "config.json").read_text())
    assert served["model_type"] == "qwen3"
