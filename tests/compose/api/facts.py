"""A session's life told by hand, as orchestrator, worker and joiner would."""

from __future__ import annotations

from typing import Any

from bus import EventLog
from schemas import ids
from schemas.records import (
    GroupEvent,
    GroupEventType,
    Heartbeat,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    SessionState,
    Stage,
    Status,
)
from tests.trainer_sink.scored import scored

FACTS = (
    SessionEventType.INIT_ASSIGNED,
    SessionEventType.READY,
    SessionEventType.GRANTED,
    SessionEventType.STARTED,
    SessionEventType.FINISHED,
    SessionEventType.SEALED,
    SessionEventType.GRADED,
)
AT = 1_700_000_000_000


async def registered(bus: EventLog, task_id: str, size: int, task: dict[str, Any] | None = None) -> list[str]:
    """The orchestrator takes a task up: its group, its sessions, their states; the sessions' ids."""
    group_id = ids.group_id(task_id)
    await bus.publish(GroupEvent(group_id=group_id, type=GroupEventType.REGISTERED, task_id=task_id, size=size, at=AT))
    sessions = [ids.session_id(group_id, index) for index in range(size)]
    for index, session_id in enumerate(sessions):
        spec = SessionSpec(
            task_id=task_id, group_id=group_id, index=index, group_size=size, policy_id="default", harness="shell"
        )
        await bus.publish(
            SessionEvent(
                session_id=session_id,
                type=SessionEventType.REGISTERED,
                group_id=group_id,
                task_id=task_id,
                spec=spec,
                task=task,
                at=AT,
            )
        )
        await bus.publish(state(session_id, task_id, Stage.QUEUED, 0))
    return sessions


def state(session_id: str, task_id: str, stage: Stage, version: int, **fields: Any) -> SessionState:
    """A session's state."""
    return SessionState(
        session_id=session_id,
        group_id=ids.group_id(task_id),
        task_id=task_id,
        policy_id="default",
        harness="shell",
        stage=stage,
        state_version=version,
        worker_id="worker-1",
        updated_at=AT + version,
        **fields,
    )


async def ran(bus: EventLog, task_id: str, index: int) -> str:
    """A session runs to its terminal fact; its id."""
    group_id = ids.group_id(task_id)
    session_id = ids.session_id(group_id, index)
    common: dict[str, Any] = {
        "session_id": session_id,
        "group_id": group_id,
        "task_id": task_id,
        "worker_id": "worker-1",
    }
    for n, kind in enumerate(FACTS):
        await bus.publish(SessionEvent(type=kind, round=1, at=AT + 1000 * (n + 1), **common))
    await bus.publish(SessionEvent(type=SessionEventType.ENDED, status=Status.COMPLETED, at=AT + 9000, **common))
    await bus.publish(state(session_id, task_id, Stage.ENDED, 9, status=Status.COMPLETED))
    return session_id


async def told(bus: EventLog, task_id: str, index: int, size: int, **fields: Any) -> ScoredTrajectory:
    """A session's result comes."""
    result = scored(task_id, index, size, spec={"policy_id": "default"}, **fields)
    await bus.publish(result)
    return result


async def lived(bus: EventLog, task_id: str, size: int = 2, **fields: Any) -> list[ScoredTrajectory]:
    """A task from its registration to all of its results."""
    await registered(bus, task_id, size, fields.pop("task", None))
    results = []
    for index in range(size):
        await ran(bus, task_id, index)
        results.append(await told(bus, task_id, index, size, **fields))
    return results


def beat(node_id: str = "worker-1", role: str = "worker", **fields: Any) -> Heartbeat:
    """A node's heartbeat, now."""
    import time

    now = int(time.time() * 1000)
    return Heartbeat(
        node_id=node_id, role=role, incarnation="i1", interval_s=1.0, free_init=4, free_run=2, at=now, seq=1, **fields
    )
