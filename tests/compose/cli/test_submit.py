"""`polynya submit`: an id means one task, and what stands on the log already isn't asked for again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bus import Bus
from bus.kafka import KafkaBus
from bus.memory import MemoryBus
from compose.cli import submit
from compose.cli.task_file import request_of
from compose.errors import CommandError, ExitCode
from compose.submissions import LoggedTasks, TaskIdTakenError, digests_of, take
from schemas.records import TaskRequest
from schemas.task import TaskSpec
from stream_processors.orchestrator.tasks import register
from tests.compose.api.facts import lived

TASK = {"instruction": "hi", "harness": {"name": "shell", "options": {"command": "true"}}, "num_samples": 2}

Submit = Callable[..., Awaitable[None]]


@pytest.fixture
def run(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submit:
    """The command, on the log in memory, with tasks as its file."""

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[MemoryBus]:
        yield memory_bus

    monkeypatch.setattr(submit, "open_bus", opened)

    async def command(*tasks: dict[str, Any], **options: Any) -> None:
        file = tmp_path / "tasks.json"
        file.write_text(json.dumps(list(tasks)))
        await submit.submit.__wrapped__(str(file), **options)  # type: ignore[attr-defined]  # without its own event loop

    return command


def requests(bus: MemoryBus) -> list[str]:
    """The ids of the commands on the log."""
    return [d.key.decode() for d in bus.records("rollout.tasks") if d.key is not None]


async def test_the_same_task_again(run: Submit, memory_bus: MemoryBus, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said that it isn't run again, and nothing is published; new ones beside it are."""
    await run({**TASK, "task_id": "t-1"})
    assert "submitted task t-1: 2 session(s)" in capsys.readouterr().out
    await run({**TASK, "task_id": "t-1", "priority": 0}, {**TASK, "task_id": "t-2"})
    said = capsys.readouterr().out
    assert "not run again: the same was submitted before as task t-1" in said
    assert "submitted task t-2" in said
    assert "give it another task_id" in said
    assert sorted(requests(memory_bus)) == ["t-1", "t-2"]
    await run({**TASK, "task_id": "t-1"}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"tasks": ["t-1"], "sessions": 2, "known": ["t-1"]}


async def test_another_task_under_a_taken_id(run: Submit, memory_bus: MemoryBus) -> None:
    """It is refused with what to do, and so is the rest of the file."""
    await run({**TASK, "task_id": "t-1"})
    with pytest.raises(CommandError, match="task 't-1' exists with another specification") as caught:
        await run({**TASK, "task_id": "t-2"}, {**TASK, "task_id": "t-1", "instruction": "other"})
    assert caught.value.code is ExitCode.USAGE
    assert "an id of its own, or none" in caught.value.hint
    with pytest.raises(CommandError, match="'t-3' stands here twice"):
        await run({**TASK, "task_id": "t-3"}, {**TASK, "task_id": "t-3", "instruction": "other"})
    assert requests(memory_bus) == ["t-1"]


async def test_a_task_that_stands_twice_in_a_file_counts_once(
    run: Submit, memory_bus: MemoryBus, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its sessions run once, so no more are waited for."""
    await run({**TASK, "task_id": "t-1"}, {**TASK, "task_id": "t-1"}, as_json=True)
    assert json.loads(capsys.readouterr().out)["sessions"] == 2
    assert requests(memory_bus) == ["t-1"]


async def test_waiting_for_a_task_that_is_over(
    run: Submit, memory_bus: MemoryBus, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its results are there at once."""
    await run({**TASK, "task_id": "t-1"})
    results = await lived(memory_bus, "t-1", 2)
    capsys.readouterr()
    async with asyncio.timeout(20):
        await run({**TASK, "task_id": "t-1"}, wait=True, as_json=True)
    assert {one["session_id"] for one in json.loads(capsys.readouterr().out)} == {r.session_id for r in results}


async def test_a_task_whose_command_has_expired(run: Submit, memory_bus: MemoryBus) -> None:
    """Its group still says what its id means."""
    await memory_bus.publish(register(request_of(TaskSpec.model_validate({**TASK, "task_id": "t-1"})), 1))
    await run({**TASK, "task_id": "t-1"})
    with pytest.raises(TaskIdTakenError):
        await run({**TASK, "task_id": "t-1", "num_samples": 3})
    assert requests(memory_bus) == []


async def test_two_submissions_that_meet(memory_bus: MemoryBus) -> None:
    """Of two tasks under one id that were both looked for before either was there, the log's first one counts."""
    await meet(memory_bus)


@pytest.mark.broker
async def test_two_submissions_that_meet_on_kafka(kafka_bus: KafkaBus) -> None:
    """There, too."""
    await meet(kafka_bus)


async def meet(bus: Bus) -> None:
    """Two that look before either submits, and one that comes later."""
    one, other = (
        request_of(TaskSpec.model_validate({**TASK, "task_id": "t-1", "instruction": text})) for text in ("a", "b")
    )
    views = [LoggedTasks(bus, ["t-1"]) for _ in range(2)]
    for view in views:
        await view.read()
    (taken,) = await take(bus, views[0], [one], digests_of([one]))
    assert (taken.is_new, taken.request.submitted_at) == (True, one.submitted_at)
    with pytest.raises(TaskIdTakenError):
        await take(bus, views[1], [other], digests_of([other]))
    later = LoggedTasks(bus, ["t-1"])
    await later.read()
    (again,) = await take(bus, later, [one], digests_of([one]))
    assert not again.is_new


async def test_ids_that_were_made_up_are_not_looked_for(
    run: Submit, memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of any length costs such a submission nothing."""

    def tail(*_: Any, **__: Any) -> Any:
        raise AssertionError("the log was read")

    monkeypatch.setattr(memory_bus, "tail", tail)
    await run(TASK)
    (record,) = (d.decode() for d in memory_bus.records("rollout.tasks"))
    assert isinstance(record, TaskRequest)
