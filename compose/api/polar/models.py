"""Polar's request and answers as models: what its clients send and read. What isn't known is refused by its path."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from compose.api.submit import TaskId


class _Polar(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PrepareAction(_Polar):
    """A step that makes a runtime ready."""

    type: Literal["exec", "upload_file", "upload_dir"]
    command: str | None = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    source: str | None = None
    target: str | None = None


class PolarRuntime(_Polar):
    """Where the harness runs."""

    backend: Literal["docker", "apptainer"] = "docker"
    image: str = Field(min_length=1)
    prepare: list[PrepareAction] = Field(default_factory=list)
    eval_prepare: list[PrepareAction] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    network: str | None = None
    workdir: str | None = None
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = None
    gpus: int = 0
    allow_internet: bool | None = None
    import_path: str | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)


class PolarServer(_Polar):
    """An MCP server."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http"] = "stdio"
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    url: str | None = None


class PolarAgent(_Polar):
    """Which agent runs."""

    harness: str | None = None
    import_path: str | None = None
    model_name: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    mcp_servers: list[PolarServer] = Field(default_factory=list)
    skills_path: str | None = None
    custom_shell: str | None = None


class PolarStrategy(_Polar):
    """A builder."""

    strategy: str = "per_request"
    config: dict[str, Any] = Field(default_factory=dict)


class PolarEvaluator(_Polar):
    """An evaluator."""

    strategy: str
    config: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    refresh_runtime: bool = False


EXAMPLE: Final[dict[str, Any]] = {
    "task_id": "polar-example-1",
    "instruction": "Say hello.",
    "num_samples": 2,
    "timeout_seconds": 60,
    "agent": {"harness": "shell", "custom_shell": "echo {instruction}"},
    "evaluator": {"strategy": "session_completed"},
}


class PolarTaskRequest(_Polar):
    """Polar's flat TaskRequest. Fields that nothing here stands for are refused by name (docs/polar-compatibility.md)."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    task_id: TaskId
    instruction: str = Field(min_length=1)
    num_samples: int = Field(default=1, ge=1, le=10_000)
    dispatch_priority: int = Field(default=0, ge=0, le=100)
    early_stop_min_usable_sessions: int | None = Field(default=None, ge=1)
    timeout_seconds: float = Field(default=600.0, gt=0, le=31_536_000)
    runtime: PolarRuntime | None = None
    agent: PolarAgent
    builder: PolarStrategy = PolarStrategy()
    evaluator: PolarEvaluator | None = None
    callback_url: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _usable_fits(self) -> PolarTaskRequest:
        usable = self.early_stop_min_usable_sessions
        if usable is not None and usable > self.num_samples:
            raise ValueError(f"early_stop_min_usable_sessions {usable} is more than num_samples {self.num_samples}")
        return self


class PolarSubmitted(BaseModel):
    """The answer to a submission."""

    task_id: str
    status: Literal["running", "completed"]


class PolarTrace(BaseModel):
    """One token sequence; `loss_mask` and `response_logprobs` are as long as `response_ids`."""

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    prompt_messages: list[Any]
    response_messages: list[Any]
    tools: Any
    finish_reason: str | None
    response_logprobs: list[float | None] | None
    reward: float | None
    metadata: dict[str, Any]


class PolarTrajectory(BaseModel):
    """A session's traces."""

    status: Literal["COMPLETED", "TIMEOUT", "ERROR"]
    metadata: dict[str, Any]
    traces: list[PolarTrace]
    error: str | None


class PolarTiming(BaseModel):
    """Durations in ms; 0.0 where a stage wasn't reached."""

    register_to_init_queue_ms: float
    init_ms: float
    run_ms: float
    postrun_ms: float


class PolarSessionResult(BaseModel):
    """A terminal session."""

    session_id: str
    task_id: str
    status: Literal["COMPLETED", "TIMEOUT", "ERROR"]
    trajectory: PolarTrajectory
    timing: PolarTiming
    node_id: str | None
    error: str | None
    metadata: dict[str, Any]


class PolarTaskStatus(BaseModel):
    """A task with the results so far."""

    task_id: str
    status: Literal["running", "completed"]
    total_sessions: int
    completed_sessions: int
    results: list[PolarSessionResult]
    result_paths: list[str]


class PolarMetrics(BaseModel):
    """How full a node is."""

    init_queue_depth: int
    init_inflight: int
    ready_depth: int
    run_inflight: int
    postrun_queue_depth: int
    postrun_inflight: int


class PolarNode(BaseModel):
    """A worker as one of Polar's gateway nodes."""

    node_id: str
    gateway_url: str
    max_init_workers: int
    max_run_workers: int
    max_postrun_workers: int
    metrics: PolarMetrics
    healthy: bool
    draining: bool
    heartbeat_interval_seconds: int
    last_heartbeat: str = Field(description="UTC, ISO 8601")


class PolarNodes(BaseModel):
    """The workers."""

    nodes: list[PolarNode]


class PolarPipeline(BaseModel):
    """What waits."""

    pending_sessions: int


class PolarStatus(BaseModel):
    """The newest tasks and the workers."""

    tasks: dict[str, Literal["running", "completed"]]
    pipeline: PolarPipeline
    nodes: PolarNodes


class PolarHealth(BaseModel):
    """Whether the API answers."""

    status: str
    nodes: int
