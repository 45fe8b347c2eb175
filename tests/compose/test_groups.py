"""What people see of groups: where each stands, why it waits, and how far trainers are."""

from __future__ import annotations

import time

from bus.memory import MemoryBus
from compose.groups import Overview
from schemas import ids
from schemas.records import (
    BatchConsumed,
    Control,
    ControlAction,
    GroupEvent,
    GroupEventType,
    Status,
    TaskRequest,
    TrainerRegistered,
)
from stream_processors.orchestrator.tasks import register

SPEC = {"instruction": "do it", "harness": {"name": "shell"}}


def of(task_id: str, kind: GroupEventType, **fields: object) -> GroupEvent:
    """A fact of a task's group."""
    base = {"group_id": ids.group_id(task_id), "type": kind, "task_id": task_id, "policy_id": "default"}
    return GroupEvent(**{**base, **fields})  # type: ignore[arg-type]


async def test_the_overview_says_where_groups_stand_and_why_they_wait(memory_bus: MemoryBus) -> None:
    """Read from the log alone; garbage on it is passed over."""
    for name in ("waits", "runs", "done"):
        await memory_bus.publish(register(TaskRequest(task_id=name, num_samples=1, spec=SPEC), 1))
    await memory_bus.publish_raw("rollout.groups", b"x", b"no avro")
    for name in ("runs", "done"):
        await memory_bus.publish(of(name, GroupEventType.ADMITTED, harness="shell"))
    await memory_bus.publish(of("done", GroupEventType.SCORED, session_id="s", is_usable=True, status=Status.COMPLETED))
    now = int(time.time() * 1000)
    await memory_bus.publish(TrainerRegistered(trainer_id="tr", start="earliest", at=now))
    view = await Overview.read(memory_bus, max_lag=2)
    states = {row.task_id: view.state_of(row) for row in view.groups.values()}
    assert states == {"waits": "waiting (trainer behind)", "runs": "running", "done": "closed (complete)"}
    assert {name: lag for name, (_, lag) in view.trainers(now).items()} == {"tr": 2}
    assert view.as_json(view.groups[ids.group_id("done")])["usable"] == 1
    await memory_bus.publish(BatchConsumed(trainer_id="tr", step=1, groups=[ids.group_id("done")]))
    pause = Control(control_id="c", target="default", target_kind="policy", action=ControlAction.PAUSE)
    await memory_bus.publish(pause)
    view = await Overview.read(memory_bus, max_lag=2)
    assert view.state_of(view.groups[ids.group_id("waits")]) == "waiting (paused)"
    assert view.state_of(view.groups[ids.group_id("runs")]) == "paused"
    assert view.held() == ["paused: policy default"]
    await memory_bus.publish(Control(control_id="d", target="*", target_kind="fleet", action=ControlAction.RESUME))
    view = await Overview.read(memory_bus, max_lag=2)
    assert view.state_of(view.groups[ids.group_id("waits")]) == "waiting"
    assert view.held() == []
