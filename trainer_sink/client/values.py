"""What the client gives back: where a task stands, and trajectories with their token arrays as numpy."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from schemas.arrays import unpack_ids, unpack_logprobs, unpack_mask


@dataclass(frozen=True, slots=True)
class TaskState:
    """Where a task stands: `status` is accepted, running or ended; `stages` counts sessions; `raw` is the whole answer."""

    task_id: str
    status: str
    num_samples: int
    scored: int
    mean_reward: float | None
    stages: Mapping[str, int]
    raw: Mapping[str, Any]

    @property
    def is_ended(self) -> bool:
        """Whether each session has its result."""
        return self.status == "ended"

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """From the API's answer."""
        return cls(
            task_id=body["task_id"],
            status=body["status"],
            num_samples=body["num_samples"],
            scored=body["scored"],
            mean_reward=body["mean_reward"],
            stages=body["stages"],
            raw=body,
        )


@dataclass(frozen=True, slots=True)
class ApiTrace:
    """One token sequence. `response_ids` (int32), `loss_mask` (uint8) and `logprobs` (float32) have equal length, shape (n,)."""

    index: int
    branch: str
    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    weight: float
    reward: float | None
    is_off_context: bool
    messages: Any
    tools: Any
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """From the API's answer with base64 arrays."""
        return cls(
            index=body["index"],
            branch=body["branch"],
            prompt_ids=unpack_ids(base64.b64decode(body["prompt_ids"])),
            response_ids=unpack_ids(base64.b64decode(body["response_ids"])),
            loss_mask=unpack_mask(base64.b64decode(body["loss_mask"])),
            logprobs=unpack_logprobs(base64.b64decode(body["logprobs"])),
            weight=body["weight"],
            reward=body["reward"],
            is_off_context=body["is_off_context"],
            messages=body["messages"],
            tools=body["tools"],
            raw=body,
        )


@dataclass(frozen=True, slots=True)
class ApiTrajectory:
    """A session's result with its traces; without traces when the session failed early."""

    session_id: str
    task_id: str
    group_id: str
    index: int
    trajectory_id: str
    revision: int
    status: str
    boundary: str
    error: str
    reward: float | None
    traces: tuple[ApiTrace, ...]
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """From the API's answer with base64 arrays."""
        return cls(
            session_id=body["session_id"],
            task_id=body["task_id"],
            group_id=body["group_id"],
            index=body["index"],
            trajectory_id=body["trajectory_id"],
            revision=body["revision"],
            status=body["status"],
            boundary=body["boundary"],
            error=body["error"],
            reward=body["reward"],
            traces=tuple(ApiTrace.of(trace) for trace in body["traces"]),
            raw=body,
        )
