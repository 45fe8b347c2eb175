"""Results in Polar's shapes: Trace, Trajectory, SessionResult, TaskResult, TaskStatus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from compose.api.rows import SessionRow, TaskRow
from compose.records_json import as_json
from schemas.arrays import unpack_ids, unpack_logprobs, unpack_mask
from schemas.records import ScoredTrajectory, SessionEvent, SessionEventType, Stage, Status, Trace

# Polar knows three ends; a cancelled session is an ERROR there, too.
_ENDS: Final = {Status.COMPLETED: "COMPLETED", Status.TIMEOUT: "TIMEOUT"}

_STAGES: Final = {
    Stage.QUEUED: "REGISTERED",
    Stage.INIT: "INITIALIZING",
    Stage.READY: "READY",
    Stage.RUNNING: "RUNNING",
    Stage.SEALED: "POST_RUN",
    Stage.POSTRUN: "EVALUATING",
}


def status_of(row: SessionRow) -> str:
    """A session's status in Polar's words."""
    if row.result is not None:
        return _ENDS.get(Status(row.result.status), "ERROR")
    return _STAGES.get(row.stage, "POST_RUN")


def task_status_of(task: TaskRow) -> str:
    """`running` until each session has its result, then `completed`, also when all of them failed."""
    return "completed" if task.is_ended else "running"


def trace(ours: Trace) -> dict[str, Any]:
    """One trace. Its messages are split before the first turn that the trace samples."""
    messages = ours.messages if isinstance(ours.messages, list) else []
    at = _first_answer(messages, len(ours.turns))
    logprobs = unpack_logprobs(ours.logprobs).tolist()
    return {
        "prompt_ids": unpack_ids(ours.prompt_ids).tolist(),
        "response_ids": unpack_ids(ours.response_ids).tolist(),
        "loss_mask": unpack_mask(ours.loss_mask).tolist(),
        "prompt_messages": messages[:at],
        "response_messages": messages[at:],
        "tools": ours.tools or None,
        "finish_reason": ours.finish_reason or None,
        "response_logprobs": logprobs or None,
        "reward": ours.reward,
        "metadata": {
            "branch": ours.branch,
            "parent_trace": ours.parent_trace,
            "root_reason": ours.root_reason,
            "weight": ours.weight,
            "is_off_context": ours.is_off_context,
            "turns": [as_json(turn) for turn in ours.turns],
        },
    }


def _first_answer(messages: list[Any], turns: int) -> int:
    """The position of the trace's first sampled message: as many assistant messages from the end as it has turns."""
    answers = [n for n, m in enumerate(messages) if isinstance(m, dict) and m.get("role") == "assistant"]
    return answers[-turns] if 0 < turns <= len(answers) else answers[0] if answers and turns else len(messages)


def session_result(scored: ScoredTrajectory, facts: Iterable[SessionEvent] = (), node_id: str = "") -> dict[str, Any]:
    """A terminal session; `facts` give its timing, in ms."""
    trajectory = scored.trajectory
    end = _ENDS.get(scored.status, "ERROR")
    spec = scored.spec
    evaluation = {
        "outcome_reward": scored.reward,
        "rewards": {reward.name: reward.value for reward in scored.rewards},
        "strategy": scored.rewards[0].grader if scored.rewards else None,
    }
    return {
        "session_id": scored.session_id,
        "task_id": scored.task_id,
        "status": end,
        "trajectory": {
            "status": end,
            "metadata": {
                "builder": trajectory.builder if trajectory is not None else None,
                "counts": as_json(trajectory.counts) if trajectory is not None else None,
                "evaluation": evaluation,
                "revision": scored.revision,
            },
            "traces": [trace(t) for t in trajectory.traces] if trajectory is not None else [],
            "error": scored.error or None,
        },
        "timing": timing(facts),
        "node_id": node_id or None,
        "error": scored.error or None,
        "metadata": dict(spec.metadata) if spec is not None and isinstance(spec.metadata, dict) else {},
    }


def timing(facts: Iterable[SessionEvent]) -> dict[str, float]:
    """Polar's four durations in ms, from the facts of the last attempt; 0.0 where a fact is missing."""
    at: dict[SessionEventType, int] = {}
    for fact in facts:
        at[fact.type] = fact.at

    def between(start: SessionEventType, end: SessionEventType) -> float:
        return float(max(0, at[end] - at[start])) if start in at and end in at else 0.0

    kinds = SessionEventType
    return {
        "register_to_init_queue_ms": between(kinds.REGISTERED, kinds.INIT_ASSIGNED),
        "init_ms": between(kinds.INIT_ASSIGNED, kinds.READY),
        "run_ms": between(kinds.STARTED, kinds.FINISHED),
        "postrun_ms": between(kinds.SEALED, kinds.GRADED),
    }


def task_result(task: TaskRow, scored: Iterable[ScoredTrajectory]) -> dict[str, Any]:
    """What a callback of Polar's shape says: the whole of a task's results."""
    results = [session_result(s, node_id=_node(task, s)) for s in scored]
    return {"task_id": task.task_id, "status": "completed", "results": results, "result_paths": []}


def task_status(task: TaskRow, scored: Iterable[ScoredTrajectory]) -> dict[str, Any]:
    """A task that may still run, with the results so far."""
    return {
        "task_id": task.task_id,
        "status": task_status_of(task),
        "total_sessions": max(task.num_samples, sum(g.size for g in task.groups.values())),
        "completed_sessions": sum(s.result is not None for s in task.sessions()),
        "results": [session_result(s, node_id=_node(task, s)) for s in scored],
        "result_paths": [],
    }


def _node(task: TaskRow, scored: ScoredTrajectory) -> str:
    group = task.groups.get(scored.group_id)
    row = group.sessions.get(scored.session_id) if group is not None else None
    return row.worker_id if row is not None else ""
