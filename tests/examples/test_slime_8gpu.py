"""The slime recipe as far as it can be checked without GPUs: its scripts, its options, its rollout function on a log."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bus.memory import MemoryBus
from schemas.records import BatchConsumed, TurnSpan, VersionSpan
from tests.trainer_sink.scored import POLICY, scored, trace

RECIPE = Path(__file__).parents[2] / "examples" / "slime_8gpu"
MODULE = "examples.slime_8gpu.polynya_rollout"
PUBLISHED = {
    "--rollout-batch-size": "4",
    "--n-samples-per-prompt": "16",
    "--optimizer": "adam",
    "--lr": "1e-6",
    "--weight-decay": "0.1",
    "--advantage-estimator": "grpo",
}


@dataclass
class Sample:
    """The fields that slime's own has, as far as the recipe fills them."""

    fields: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Sample:
        return Sample(data)


@dataclass
class RolloutFnTrainOutput:
    samples: list[Any]
    metrics: dict[str, Any]


def options() -> dict[str, str]:
    """The options of train.sh and the word behind each."""
    text = (RECIPE / "train.sh").read_text()
    return {name: value.strip() for name, value in re.findall(r"(?m)^ +(--[a-z0-9-]+)(.*?)\\?$", text)}


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The rollout module, with stand-ins for slime's two modules."""
    for name in ("slime", "slime.rollout", "slime.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name, members in (
        ("slime.rollout.base_types", {"RolloutFnTrainOutput": RolloutFnTrainOutput}),
        ("slime.utils.types", {"Sample": Sample}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("script", ["env.sh", "serve.sh", "train.sh"])
def test_scripts_are_bash(script: str) -> None:
    """No syntax error."""
    done = subprocess.run(["bash", "-n", RECIPE / script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_option_is_one_of_slimes() -> None:
    """None is misspelt, none is of another release."""
    known = set((Path(__file__).parent / "slime_options.txt").read_text().split("\n")[1:])
    assert len(known) > 300
    assert set(options()) - known == set()


def test_the_published_numbers() -> None:
    """Four groups of sixteen a step, one update a step, Adam at 1e-6 with decay 0.1, TIS."""
    given = options()
    assert {name: given[name] for name in PUBLISHED} == PUBLISHED
    assert int(given["--global-batch-size"]) == int(given["--rollout-batch-size"]) * int(
        given["--n-samples-per-prompt"]
    )
    assert "--use-tis" in given


def test_without_slime_the_module_says_what_to_do() -> None:
    """Its import fails with the image's name, not with a bare ModuleNotFoundError."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {MODULE}"], capture_output=True, text=True, check=False, cwd=RECIPE.parents[1]
    )
    assert done.returncode == 1
    assert "slime isn't here: use the image slimerl/slime" in done.stderr.splitlines()[-1]


def group(name: str) -> list[Any]:
    """Two sessions: one in two traces that earned 1, one in one trace that earned nothing; all sampled by version 1."""
    span = TurnSpan(start=0, end=2, is_trained=True, version_spans=[VersionSpan(version="1", start=0, end=2)])
    first, second = (replace(trace(n), turns=[span]) for n in range(2))
    return [scored(name, 0, 2, reward=1.0, traces=[first, second]), scored(name, 1, 2, reward=0.0, traces=[first])]


def test_rollouts_come_from_the_log_and_the_position_is_saved_with_the_weights(
    recipe: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Groups become nested samples with finished advantages; a restart from a save trains what was handed out after it again."""
    bus = MemoryBus()

    @asynccontextmanager
    async def connect(_: object) -> AsyncIterator[MemoryBus]:
        yield bus

    monkeypatch.setattr(recipe, "connect", connect)
    monkeypatch.setenv("POLYNYA_BOOTSTRAP", "nowhere:1")
    monkeypatch.setenv("POLYNYA_POLICY", POLICY)
    args = SimpleNamespace(rollout_batch_size=1, save=str(tmp_path), load=str(tmp_path))
    source = recipe.PolynyaSource(args)
    source._wait(bus.__aenter__())
    source._wait(publish(bus, [one for name in "abcd" for one in group(name)]))
    outputs = [recipe.generate_rollout(args, n, source) for n in range(3)]
    ((whole, single),) = outputs[0].samples
    assert [len(whole), len(single)] == [2, 1]
    fields = [sample.fields for sample in whole + single]
    assert {f["rollout_id"] for f in fields[:2]} == {0}
    assert fields[2]["rollout_id"] == 1
    assert fields[0]["reward"] == fields[1]["reward"] > 0 > fields[2]["reward"]
    assert outputs[0].metrics == {"polynya/reward": 0.5, "polynya/traces_per_session": 1.5}
    assert [sample.fields["rollout_id"] for s in outputs[2].samples[0] for sample in s] == [4, 4, 5]
    source.save(1)  # slime trained 0 and 1; 2 is out
    batches = source._wait(consumed(bus))
    assert [(b.step, b.policy_version) for b in batches] == [(1, "2"), (2, "2")]
    assert len({g for b in batches for g in b.groups}) == 2
    assert json.loads((tmp_path / "rollout" / "polynya_1.json").read_text())["given"] == 6
    source._wait(source._stack.aclose())
    again = recipe.PolynyaSource(args)
    loop, again._loop = again._loop, source._loop  # the bus in memory belongs to one loop
    again.load(1)
    later = [recipe.generate_rollout(args, n, again) for n in (2, 3)]
    rest = set().union(*map(sessions, later))
    assert len(rest) == 4
    assert all(rest.isdisjoint(sessions(output)) for output in outputs[:2])
    assert sessions(outputs[2]) < rest
    again._wait(again._stack.aclose())
    again._loop = loop
    for one in (again, source):
        one.close()


def test_slimes_own_generation_is_refused(recipe: types.ModuleType) -> None:
    """Prompts aren't given out, and evaluation names the command that does it."""
    source = recipe.PolynyaSource(SimpleNamespace(rollout_batch_size=1))
    with pytest.raises(RuntimeError, match="use its generate_rollout"):
        source.get_samples(4)
    source.close()
    with pytest.raises(RuntimeError, match="polynya eval"):
        recipe.generate_rollout(SimpleNamespace(), 0, source, evaluation=True)


def sessions(output: RolloutFnTrainOutput) -> set[str]:
    return {sample.fields["session_id"] for g in output.samples for session in g for sample in session}


async def publish(bus: MemoryBus, records: list[Any]) -> None:
    for record in records:
        await bus.publish(record)


async def consumed(bus: MemoryBus) -> list[BatchConsumed]:
    told = [d.decode() async for d in bus.tail(["trainer.consumed"], until_end=True)]
    return [one for one in told if isinstance(one, BatchConsumed)]
