"""Scored trajectories for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from schemas import arrays, ids
from schemas.records import (
    Boundary,
    Counts,
    RewardValue,
    ScoredTrajectory,
    SessionSpec,
    Status,
    Trace,
    Trajectory,
    TurnSpan,
)

POLICY = "policy-a"


def trace(index: int = 0, prompt: Iterable[int] = (1, 2), response: Iterable[int] = (3, 4, 5), **more: Any) -> Trace:
    """A trace whose last response token is an environment's."""
    sampled = list(response)
    mask = [1] * (len(sampled) - 1) + [0]
    return Trace(
        index=index,
        prompt_ids=arrays.pack_ids(prompt),
        response_ids=arrays.pack_ids(sampled),
        loss_mask=arrays.pack_mask(mask),
        logprobs=arrays.pack_logprobs([-0.5 * m for m in mask]),
        turns=[TurnSpan(completion_id=f"c{index}", start=0, end=len(sampled) - 1, is_trained=True)],
        messages=[{"role": "user", "content": "hi \ud800"}],
        **more,
    )


def scored(
    group: str,
    index: int,
    size: int,
    *,
    revision: int = 1,
    traces: Iterable[Trace] | None = None,
    status: Status = Status.COMPLETED,
    reward: float | None = 1.0,
    spec: dict[str, Any] | None = None,
    **more: Any,
) -> ScoredTrajectory:
    """Session `index` of a group of `size`; a failed one has no traces."""
    group_id = ids.group_id(group)
    session_id = ids.session_id(group_id, index)
    kept = list(traces) if traces is not None else ([trace()] if status is Status.COMPLETED else [])
    policy = (spec or {}).get("policy_id", POLICY)
    fields: dict[str, Any] = {
        "session_id": session_id,
        "group_id": group_id,
        "task_id": group,
        "policy_id": policy,
        "trajectory_id": ids.trajectory_id(session_id, "", "prefix_merging"),
        "revision": revision,
        "content_digest": f"r{revision}",
        "status": status,
        "boundary": Boundary.NONE if status is Status.COMPLETED else Boundary.HARNESS,
        "reward": reward,
        "rewards": [] if reward is None else [RewardValue(name="reward", value=reward, grader="command")],
        "trajectory": Trajectory(
            session_id=session_id,
            group_id=group_id,
            traces=kept,
            counts=Counts(calls=len(kept), trained=len(kept), trainable_tokens=sum(t.loss_mask.count(1) for t in kept)),
        ),
        "spec": SessionSpec(
            **{
                "task_id": group,
                "group_id": group_id,
                "index": index,
                "group_size": size,
                "policy_id": policy,
                "harness": "shell",
                **(spec or {}),
            }
        ),
        "ended_at": 1_700_000_000_000,
    }
    return ScoredTrajectory(**(fields | more))


def whole(group: str, size: int, **more: Any) -> list[ScoredTrajectory]:
    """All sessions of a group."""
    return [scored(group, i, size, **more) for i in range(size)]
