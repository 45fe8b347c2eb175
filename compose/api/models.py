"""What the API answers with, as models: the shapes in its OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Ids = list[int] | str
Numbers = list[float | None] | str
TaskStatus = Literal["accepted", "running", "ended"]


class Accepted(BaseModel):
    """A task that stands on the log; a repeated submission gets the same answer."""

    task_id: str
    group_id: str = Field(description="of the task's first group of sessions")
    policy_id: str
    num_samples: int
    submitted_at: int = Field(description="UTC epoch ms")


class AcceptedBatch(BaseModel):
    """All tasks of a batch, in its order."""

    tasks: list[Accepted]


class CancelRequested(BaseModel):
    """What a cancellation was asked of; each session ends once, with what it has."""

    target: str
    sessions: int = Field(description="sessions that hadn't ended; 0: there was nothing to cancel")


class CancelBody(BaseModel):
    """Why something is cancelled."""

    model_config = {"extra": "forbid"}

    reason: str = Field(default="cancelled over the API", max_length=500)


class Session(BaseModel):
    """Where a session stands."""

    session_id: str
    task_id: str
    group_id: str
    index: int
    policy_id: str
    harness: str
    stage: str = Field(description="queued, init, ready, running, sealed, postrun or ended")
    status: str = Field(description="none, completed, failed, timeout or cancelled")
    boundary: str = Field(description="what a failure is attributed to: provider, harness, sandbox or evaluator")
    error: str
    attempt: int
    lease_id: str
    worker_id: str
    owner: str
    registered_at: int
    updated_at: int
    deadline_at: int
    reward: float | None
    revision: int = Field(description="of its scored trajectory; 0: it isn't scored yet")


class SessionPage(BaseModel):
    """Some sessions; `next` is the `after` of the next page, null at the end."""

    sessions: list[Session]
    next: str | None


class Fact(BaseModel):
    """Something that happened to a session."""

    type: str
    at: int
    attempt: int
    round: int
    worker_id: str
    status: str
    boundary: str
    error: str


class Counts(BaseModel):
    """Where a session's calls ended: calls = trained + context + all of untrainable."""

    calls: int
    trained: int
    context: int
    untrainable: dict[str, int]
    traces: int
    prompt_tokens: int
    sampled_tokens: int
    trainable_tokens: int


class RewardOut(BaseModel):
    """A grader's verdict."""

    name: str
    value: float | None
    trace_rewards: list[float | None] | None
    grader: str
    grader_version: str
    provenance: str


class SessionResult(BaseModel):
    """How a session ended, without its tokens."""

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
    rewards: list[RewardOut]
    counts: Counts | None
    ended_at: int
    scored_at: int


class ResultPage(BaseModel):
    """Results of a task's sessions; `next` is the `after` of the next page, null at the end."""

    task_id: str
    is_ended: bool = Field(description="whether each session of the task has its result")
    results: list[SessionResult]
    next: int | None


class SessionDetail(Session):
    """A session with its facts in order and, once it is scored, its result."""

    facts: list[Fact]
    result: SessionResult | None


class Group(BaseModel):
    """The sessions of one generation of a task."""

    group_id: str
    size: int
    state: str
    reason: str
    requeue_of: str
    for_trainer: str
    generation: int
    sessions: list[Session]


class Callbacks(BaseModel):
    """How the task's callbacks went."""

    delivered: int
    due: int = Field(description="waiting for another try")
    given_up: int
    last_error: str


class Task(BaseModel):
    """Where a task stands."""

    task_id: str
    status: TaskStatus
    policy_id: str
    harness: str
    num_samples: int
    submitted_at: int
    stages: dict[str, int] = Field(description="how many sessions stand in each stage")
    scored: int = Field(description="sessions that have their result")
    mean_reward: float | None
    callbacks: Callbacks
    groups: list[Group]


class Turn(BaseModel):
    """The tokens [start, end) of `response_ids` that one call sampled."""

    completion_id: str
    start: int
    end: int
    is_trained: bool
    fidelity: str
    version_spans: list[dict[str, Any]]


class Trace(BaseModel):
    """One token sequence with its loss mask; arrays are lists, or base64 of little-endian int32, float32 and uint8."""

    index: int
    branch: str
    parent_trace: int
    root_reason: str
    prompt_ids: Ids
    response_ids: Ids
    loss_mask: Ids
    logprobs: Numbers
    turns: list[Turn]
    messages: Any
    tools: Any
    finish_reason: str
    is_off_context: bool
    weight: float
    reward: float | None
    prefix_break: int


class Trajectory(SessionResult):
    """A session's result with all its traces."""

    lease_id: str
    attempt: int
    policy_id: str
    builder: str
    tokenizer_digest: str
    logprobs_mode: str
    metadata: Any
    traces: list[Trace]


class TrajectoryPage(BaseModel):
    """Trajectories of a task's sessions; `next` is the `after` of the next page, null at the end."""

    task_id: str
    is_ended: bool
    trajectories: list[Trajectory]
    next: int | None


class HeldSession(BaseModel):
    """A session that a worker holds."""

    session_id: str
    attempt: int
    stage: str


class Node(BaseModel):
    """A worker or a proxy, by its last heartbeat."""

    node_id: str
    role: str
    incarnation: str
    data_address: str
    is_alive: bool
    is_draining: bool
    free_init: int
    free_ready: int
    free_run: int
    free_postrun: int
    holds: list[HeldSession]
    at: int


class Nodes(BaseModel):
    """The fleet."""

    nodes: list[Node]


class Health(BaseModel):
    """Whether the API can answer: `ok`, `starting` (it reads the log) or `degraded`."""

    status: Literal["ok", "starting", "degraded"]
    problems: list[str]
    lag: int = Field(description="records of the log that aren't read yet; -1: Kafka doesn't say")
    tasks: int
    sessions: int
    evicted: int = Field(description="tasks that memory had no room for")
    unreadable: int = Field(description="records that were passed over")
    callbacks: Literal["off", "ok", "retrying"]
