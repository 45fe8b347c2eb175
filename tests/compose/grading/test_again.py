"""Grading again: from artifacts and trajectories, on a log in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBus
from compose.errors import CommandError
from compose.grading.again import Regrading, effective
from compose.grading.evaluator_text import parse_evaluator
from compose.grading.past import PastSession, past_sessions
from schemas import decode, ids
from schemas.records import Reward, SessionEvent, SessionEventType, SessionSpec, Status, Trace, Trajectory
from schemas.task import EvaluatorSpec, TaskSpec
from stage_workers import evaluators
from stage_workers.evaluators import Artifacts
from stage_workers.runtimes.factory import Runtimes

LEASE = ids.lease_id("s1", 1)
TASK: dict[str, Any] = {
    "task_id": "t1",
    "instruction": "Do it",
    "harness": {"name": "shell", "options": {"command": "true"}},
    "eval_prepare": [{"exec": "echo prepared > there"}],
    "evaluator": {"name": "session_completed", "options": {"reward": "done"}},
}
SPEC = SessionSpec(task_id="t1", group_id="g1", builder="prefix_merging")


async def past(bus: MemoryBus, *, is_forgotten: bool = False, **end: Any) -> PastSession:
    """A session with its facts, one verdict and an artifact on the log."""
    kept = Artifacts(bus.blobs, "s1", kept_until=0)
    await kept.keep("patch.diff", b"the patch")

    async def tell(kind: SessionEventType, **fields: Any) -> None:
        await bus.publish(
            SessionEvent(session_id="s1", task_id="t1", group_id="g1", type=kind, lease_id=LEASE, **fields)
        )

    await tell(SessionEventType.REGISTERED, spec=SPEC, task=TaskSpec.model_validate(TASK).model_dump(mode="json"))
    await tell(SessionEventType.FINISHED, status=Status.COMPLETED, exit_code=0)
    await tell(SessionEventType.GRADED, details={"artifacts": kept.details})
    given = {"winning_lease": LEASE, "status": Status.COMPLETED, "expects_reward": True, "rewards": ["done"], **end}
    if given["status"] is not Status.NONE:
        await tell(SessionEventType.ENDED, **given)
    if is_forgotten:
        await tell(SessionEventType.FORGOTTEN)
    await bus.publish(
        Reward(session_id="s1", lease_id=LEASE, name="done", value=1.0, grader="session_completed", grader_version="1")
    )
    await bus.publish(
        Reward(session_id="s1", lease_id="another", name="done", value=9.0, grader="x", grader_version="1")
    )
    (found,) = await past_sessions(bus, sessions=["s1"])
    return found


def regrading(bus: MemoryBus, tmp_path: Path, **more: Any) -> Regrading:
    runtimes = Runtimes(root=tmp_path / "runtimes", owner="tests/one", isolates_local=False)
    return Regrading(bus, runtimes, artifact_retention_s=60.0, **more)


def published(bus: MemoryBus) -> list[Reward]:
    found = [decode(item.value) for item in bus.records("reward.assigned")]
    return [reward for reward in found if isinstance(reward, Reward) and reward.run]


async def test_what_is_known_of_a_session(memory_bus: MemoryBus) -> None:
    """Task, end, artifacts and the winning lease's verdicts; also by task and by group."""
    found = await past(memory_bus)
    assert (found.why_not, found.lease_id, set(found.artifacts)) == ("", LEASE, {"patch.diff"})
    assert {name: reward.value for name, reward in found.rewards.items()} == {"done": 1.0}
    assert [s.session_id for s in await past_sessions(memory_bus, tasks=["t1"])] == ["s1"]
    assert [s.session_id for s in await past_sessions(memory_bus, groups=["g1"])] == ["s1"]
    assert await past_sessions(memory_bus, tasks=["t2"]) == []


async def test_another_attempt_s_artifacts(memory_bus: MemoryBus) -> None:
    """What an attempt that doesn't count kept, and told later, never stands for the winner's."""
    other = Artifacts(memory_bus.blobs, "s1", kept_until=0)
    await other.keep("patch.diff", b"another patch")
    await past(memory_bus)
    details = {"artifacts": other.details}
    for kind in (SessionEventType.GRADED, SessionEventType.FINISHED):
        await memory_bus.publish(SessionEvent(session_id="s1", lease_id="another", type=kind, details=details))
    late = Reward(session_id="s1", lease_id="another", name="done", value=1.0, grader="x", grader_version="1")
    await memory_bus.publish(replace(late, details=details))
    (found,) = await past_sessions(memory_bus, sessions=["s1"])
    assert await memory_bus.blobs.get(found.artifacts["patch.diff"].url) == b"the patch"


class Crashing:
    """An evaluator of somebody else's, with a fault."""

    NAME, VERSION = "crashing", "1"

    def __init__(self, options: Any) -> None:
        del options

    async def evaluate(self, context: Any) -> list[Any]:
        raise KeyError(context.session_id)


async def test_an_evaluator_that_crashes(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """Its crash is the error of one session."""
    asked = EvaluatorSpec(name=f"{__name__}:Crashing")
    done = await regrading(memory_bus, tmp_path).grade_all([await past(memory_bus)], asked)
    assert [one.error for one in done] == ["the evaluator crashed: KeyError('s1')"]
    assert published(memory_bus) == []


async def test_the_same_verdict_is_no_news(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """By its own evaluator the session gets what it has: nothing is published."""
    done = await regrading(memory_bus, tmp_path).grade(await past(memory_bus), None)
    assert ([reward.value for reward in done.rewards], done.news, done.error) == ([1.0], [], "")
    assert published(memory_bus) == []


async def test_another_evaluator_in_a_fresh_runtime(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """The task's preparation runs there; the verdict is a fact that names its grading, with artifacts of its own."""
    asked = EvaluatorSpec(name="command", fresh=True, options={"command": "cat there; exit 1", "reward": "done"})
    done = await regrading(memory_bus, tmp_path, run="later").grade(await past(memory_bus), asked)
    assert done.error == ""
    (reward,) = published(memory_bus)
    assert (reward.name, reward.value, reward.grader, reward.provenance, reward.run) == (
        "done",
        0.0,
        "command",
        "regrade",
        "later",
    )
    assert reward.trajectory_id == ids.trajectory_id("s1", LEASE, "prefix_merging")
    assert await memory_bus.blobs.get(reward.details["artifacts"]["evaluator.log"]["url"]) == b"prepared\n"
    (again,) = await past_sessions(memory_bus, sessions=["s1"])
    assert again.rewards["done"].value == 0.0
    assert set(again.artifacts) == {"patch.diff", "evaluator.log"}
    assert list((tmp_path / "runtimes").iterdir()) == []


async def test_by_the_trajectory(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """A function sees the newest revision of the winning lease's trajectory."""
    session = await past(memory_bus)
    asked = EvaluatorSpec(name="trajectory", options={"function": "tests.stage_workers.evaluators.grading:each"})
    done = await regrading(memory_bus, tmp_path).grade(session, asked)
    assert done.error == "its trajectory isn't on the log any more"
    for lease, revision, index in (("other", 1, 7), (LEASE, 1, 1), (LEASE, 2, 2), ("other", 3, 8)):
        traces = [Trace(index=index)]
        await memory_bus.publish(Trajectory(session_id="s1", lease_id=lease, revision=revision, traces=traces))
    done = await regrading(memory_bus, tmp_path).grade(session, asked)
    assert [(reward.value, reward.trace_rewards) for reward in done.news] == [(2.0, [2.0])]


async def test_a_dry_run(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """It says what it would publish, and leaves no trace."""
    session = await past(memory_bus)
    before = sorted(tmp_path.rglob("blobs/*/*"))
    asked = EvaluatorSpec(name="command", fresh=True, options={"command": "echo hi; exit 1"})
    done = await regrading(memory_bus, tmp_path, is_dry=True).grade(session, asked)
    assert [reward.value for reward in done.news] == [0.0]
    assert published(memory_bus) == []
    assert before == sorted(tmp_path.rglob("blobs/*/*")) != []


async def test_what_needs_the_agent_s_runtime(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """That one is gone: an error for this session, and the others go on."""
    session = await past(memory_bus)
    asked = EvaluatorSpec(name="command", options={"command": "true"})
    seen: list[str] = []
    done = await regrading(memory_bus, tmp_path).grade_all(
        [session, session], asked, at_once=2, on_done=lambda one: seen.append(one.error)
    )
    assert len(done) == 2
    assert all("as the harness left it, and that one is gone" in error for error in seen)


@pytest.mark.parametrize(
    ("end", "is_forgotten", "why"),
    [
        ({"status": Status.NONE}, False, "it hasn't ended yet"),
        ({"winning_lease": ""}, False, "none of its attempts ever ran"),
        ({}, True, "its retention is over"),
    ],
)
async def test_sessions_that_can_not_be_graded(
    memory_bus: MemoryBus, tmp_path: Path, end: dict[str, Any], is_forgotten: bool, why: str
) -> None:
    """Each says why."""
    done = await regrading(memory_bus, tmp_path).grade(await past(memory_bus, is_forgotten=is_forgotten, **end), None)
    assert why in done.error


def test_which_evaluator_grades() -> None:
    """None and the bare name of the task's own mean the task's own, with its options."""
    task = TaskSpec.model_validate(TASK)
    other = EvaluatorSpec(name="command", options={"command": "true"})
    assert effective(task, None) == task.evaluator
    assert effective(task, EvaluatorSpec(name="session_completed")) == task.evaluator
    assert effective(task, other) == other
    alike = EvaluatorSpec(name="session_completed", options={"reward": "other"})
    assert effective(task, alike) == alike


def test_where_another_evaluator_grades() -> None:
    """One of the task's name where the task's does; another one where it is asked to, in the task's own kind of fresh runtime."""
    described = {"name": "command", "options": {"command": "x"}, "runtime": {"kind": "docker", "image": "tests:1"}}
    task = TaskSpec.model_validate({**TASK, "evaluator": described})
    own = task.evaluator.runtime
    assert effective(task, EvaluatorSpec(name="command", options={"command": "y"})).runtime == own
    elsewhere = EvaluatorSpec(name="test_on_output", options={"command": "y"})
    assert effective(task, elsewhere).runtime is None
    assert effective(task, elsewhere.model_copy(update={"fresh": True})).runtime == own


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("swebench", "swebench", {}),
        ("my.module:Class", "my.module:Class", {}),
        ("command:command=pytest -q,score=printed", "command", {"command": "pytest -q", "score": "printed"}),
        ("command:command=a, b,score=printed", "command", {"command": "a, b", "score": "printed"}),
        ("command:command=true", "command", {"command": "true"}),
        ("command:comand=true", "command", {"comand": True}),
        ("my.module:Class:level=3", "my.module:Class", {"level": 3}),
        (
            'trajectory:{"function": "m:f", "arguments": {"a": 1}}',
            "trajectory",
            {"function": "m:f", "arguments": {"a": 1}},
        ),
    ],
)
def test_evaluators_as_typed(text: str, name: str, options: dict[str, Any]) -> None:
    """A name alone, with pairs, or with JSON."""
    spec = parse_evaluator(text)
    assert (spec.name, spec.options) == (name, options)


JSON = {"seconds": 5, "texts": ["true", "1"], "mapping": {"a": 1}}


@pytest.mark.parametrize(
    ("name", "option", "kind"),
    [
        (name, option, kind)
        for name in evaluators.names()
        for option, kind in (evaluators.options_of(name) or {}).items()
    ],
)
def test_a_value_is_read_as_its_option_is(name: str, option: str, kind: str) -> None:
    """A text stays what was typed, also where it could be JSON; the rest is JSON."""
    if kind == "text":
        for typed in ("true", "null", "1", "[1]", '{"a": 1}', '"quoted"', "a = b"):
            assert parse_evaluator(f"{name}:{option}={typed}").options == {option: typed}
    else:
        assert parse_evaluator(f"{name}:{option}={json.dumps(JSON[kind])}").options == {option: JSON[kind]}


@pytest.mark.parametrize("text", ["", "command:{oops", ":{}"])
def test_bad_evaluators(text: str) -> None:
    """What names none is a usage error."""
    with pytest.raises(CommandError):
        parse_evaluator(text)
