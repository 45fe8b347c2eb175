"""Rows as the API answers them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from compose.api.rows import GroupRow, SessionRow, TaskRow
from schemas.records import CallbackState, Heartbeat, SessionEvent

BEATS_MISSED: Final = 15
"""A node whose last heartbeat is older than so many of its intervals is told to be gone."""


def session_json(row: SessionRow) -> dict[str, Any]:
    """As `models.Session`."""
    result = row.result
    return {
        "session_id": row.session_id,
        "task_id": row.task_id,
        "group_id": row.group_id,
        "index": row.index,
        "policy_id": row.policy_id,
        "harness": row.harness,
        "stage": str(row.stage_now),
        "status": str(row.status) if result is None else result.status,
        "boundary": row.boundary,
        "error": row.error,
        "attempt": row.attempt,
        "lease_id": row.lease_id,
        "worker_id": row.worker_id,
        "owner": row.owner,
        "registered_at": row.registered_at,
        "updated_at": row.updated_at,
        "deadline_at": row.deadline_at,
        "reward": result.reward if result is not None else None,
        "revision": result.revision if result is not None else 0,
    }


def fact_json(fact: SessionEvent) -> dict[str, Any]:
    """As `models.Fact`."""
    return {
        "type": str(fact.type),
        "at": fact.at,
        "attempt": fact.attempt,
        "round": fact.round,
        "worker_id": fact.worker_id,
        "status": str(fact.status),
        "boundary": str(fact.boundary),
        "error": fact.error,
    }


def task_json(task: TaskRow, *, with_sessions: bool) -> dict[str, Any]:
    """As `models.Task`."""
    rewards = [s.result.reward for s in task.sessions() if s.result is not None and s.result.reward is not None]
    return {
        "task_id": task.task_id,
        "status": task.status,
        "policy_id": task.policy_id,
        "harness": task.harness,
        "num_samples": task.num_samples,
        "submitted_at": task.submitted_at,
        "stages": task.stages(),
        "scored": sum(s.result is not None for s in task.sessions()),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "callbacks": _callbacks_json(task),
        "groups": [_group_json(group, with_sessions=with_sessions) for group in task.groups.values()],
    }


def _group_json(group: GroupRow, *, with_sessions: bool) -> dict[str, Any]:
    rows = sorted(group.sessions.values(), key=lambda s: s.index) if with_sessions else []
    return {
        "group_id": group.group_id,
        "size": group.size,
        "state": group.state,
        "reason": group.reason,
        "requeue_of": group.requeue_of,
        "for_trainer": group.for_trainer,
        "generation": group.generation,
        "sessions": [session_json(row) for row in rows],
    }


def _callbacks_json(task: TaskRow) -> dict[str, Any]:
    counts = Counter(c.state for c in task.callbacks.values())
    errors = [c.error for c in task.callbacks.values() if c.error]
    return {
        "delivered": counts[CallbackState.DELIVERED],
        "due": counts[CallbackState.DUE],
        "given_up": counts[CallbackState.GIVEN_UP],
        "last_error": errors[-1] if errors else "",
    }


def is_alive(beat: Heartbeat, now_ms: int | None = None) -> bool:
    """Whether a node's last heartbeat is young enough."""
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    return now_ms - beat.at <= max(1.0, beat.interval_s) * BEATS_MISSED * 1000


def node_json(beat: Heartbeat) -> dict[str, Any]:
    """As `models.Node`."""
    return {
        "node_id": beat.node_id,
        "role": beat.role,
        "incarnation": beat.incarnation,
        "data_address": beat.data_address,
        "is_alive": is_alive(beat),
        "is_draining": beat.is_draining,
        "free_init": beat.free_init,
        "free_ready": beat.free_ready,
        "free_run": beat.free_run,
        "free_postrun": beat.free_postrun,
        "holds": [{"session_id": h.session_id, "attempt": h.attempt, "stage": str(h.stage)} for h in beat.holds],
        "at": beat.at,
    }
