"""`polynya pause`, `drain`, `resume`, `cancel`: whom they mean, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bus.memory import MemoryBus
from compose.cli import control
from compose.errors import CommandError
from compose.groups import Overview
from schemas import ids
from schemas.records import Control, ControlAction, Heartbeat, SessionState, Stage, TaskRequest
from stream_processors.orchestrator.tasks import register

SPEC = {"instruction": "do it", "harness": {"name": "shell"}}


@pytest.fixture
def bus(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> MemoryBus:
    """The bus that commands open."""

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[MemoryBus]:
        yield memory_bus

    monkeypatch.setattr(control, "open_bus", opened)
    return memory_bus


def told(bus: MemoryBus) -> list[tuple[ControlAction, str, str]]:
    """The controls on the log, in order."""
    records = [d.decode() for d in sorted(bus.records("rollout.control"), key=lambda d: d.timestamp_ms)]
    return [(c.action, c.target_kind, c.target) for c in records if isinstance(c, Control)]


async def hold(action: ControlAction, everything: bool = False, for_: str | None = None, **targets: str) -> None:
    """What the three commands do."""
    await control._hold(action, dict(targets), everything, "because", for_)


@pytest.mark.parametrize("targets", [{}, {"policy": "p", "task": "t"}], ids=["none", "two"])
async def test_exactly_one_target(bus: MemoryBus, targets: dict[str, str]) -> None:
    """Nothing is guessed."""
    with pytest.raises(CommandError, match="exactly one of"):
        await hold(ControlAction.PAUSE, **targets)
    assert told(bus) == []


async def test_a_worker_and_a_group_have_to_be_known(bus: MemoryBus) -> None:
    """A node by its whole name, a group by the start of its id; typing errors are refused with what there is."""
    await bus.publish(Heartbeat(node_id="w1", role="worker"))
    await bus.publish(register(TaskRequest(task_id="t", spec=SPEC), 1))
    group_id = ids.group_id("t")
    await hold(ControlAction.DRAIN, node="w1")
    await hold(ControlAction.PAUSE, group=group_id[:6])
    assert sorted(told(bus)) == sorted([(ControlAction.DRAIN, "node", "w1"), (ControlAction.PAUSE, "group", group_id)])
    with pytest.raises(CommandError, match="no worker or proxy 'w2' is known") as caught:
        await hold(ControlAction.DRAIN, node="w2")
    assert caught.value.hint == "one of w1"
    with pytest.raises(CommandError, match="no group"):
        await hold(ControlAction.PAUSE, group="zzz")


async def test_only_what_is_held_can_be_resumed(bus: MemoryBus) -> None:
    """By name it must be paused or drained; the whole fleet may always be told."""
    with pytest.raises(CommandError, match="neither paused nor drained"):
        await hold(ControlAction.RESUME, policy="p")
    await hold(ControlAction.PAUSE, policy="p")
    await hold(ControlAction.RESUME, policy="p")
    await hold(ControlAction.RESUME, everything=True)
    assert told(bus)[-1] == (ControlAction.RESUME, "fleet", "*")


async def test_a_pause_with_an_end(bus: MemoryBus) -> None:
    """It says how long it holds; what is no time is refused, and what is over can't be resumed."""
    for text in ("0s", "soon"):
        with pytest.raises(CommandError, match=f"--for '{text}' is no"):
            await hold(ControlAction.PAUSE, policy="p", for_=text)
    await hold(ControlAction.PAUSE, policy="p", for_="10m")
    (record,) = (d.decode() for d in bus.records("rollout.control"))
    assert isinstance(record, Control)
    assert record.for_ms == 600_000
    view = await Overview.read(bus)
    (span,) = view.controls.in_force(0).values()
    assert span.to_at is not None
    (held,) = view.held(span.to_at - 1)
    assert held.startswith("paused: policy p until 20")
    assert view.held(span.to_at) == []


@pytest.mark.parametrize(
    ("kind", "name"), [("session", "s"), ("group", "g"), ("task", "t"), ("policy", "p"), ("node", "w")]
)
def test_a_state_is_known_by_all_of_its_names(kind: str, name: str) -> None:
    """So that a cancel can say how many sessions it means."""
    state = SessionState(session_id="s", group_id="g", task_id="t", policy_id="p", worker_id="w", stage=Stage.RUNNING)
    assert control._name(state, kind) == name
