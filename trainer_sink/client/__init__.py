"""A client of the HTTP API: submit tasks, wait for them, take their trajectories; needs httpx (extra `client`) and no Kafka.

In: the API's URL and key. Out: plain values, trajectories with numpy arrays. `verify_callback` is for receivers of callbacks.
"""

from __future__ import annotations

from trainer_sink.client.callbacks import verify_callback
from trainer_sink.client.client import AsyncPolynyaClient, PolynyaClient
from trainer_sink.client.errors import (
    ApiUnavailableError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PolynyaApiError,
    TaskTimeoutError,
    TooManyRequestsError,
    UnauthorizedError,
)
from trainer_sink.client.values import ApiTrace, ApiTrajectory, TaskState

__all__ = [
    "ApiTrace",
    "ApiTrajectory",
    "ApiUnavailableError",
    "AsyncPolynyaClient",
    "ConflictError",
    "InvalidRequestError",
    "NotFoundError",
    "PolynyaApiError",
    "PolynyaClient",
    "TaskState",
    "TaskTimeoutError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "verify_callback",
]
