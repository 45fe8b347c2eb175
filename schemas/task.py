"""Task files: what to run, how, how often and how to grade it. Unknown fields are refused with their path."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Strict(BaseModel):
    # An infinity has no spelling on the log: a task that was accepted with one could not be read back.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HarnessSpec(_Strict):
    """Which agent program runs, in which version (the pinned one when absent), with which options of its adapter."""

    name: str = Field(min_length=1, description="a harness that `polynya harness list` names")
    version: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class RuntimeSpec(_Strict):
    """Where the harness runs. `network` counts for sandboxes; `local` is for trusted harnesses."""

    kind: Literal["local", "docker", "apptainer"] = "local"
    image: str | None = None
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=None, gt=0)
    network: Literal["model_only", "egress"] = "model_only"
    options: dict[str, Any] = Field(default_factory=dict)


class Upload(_Strict):
    """A file that a step writes: its path inside the working directory and its text."""

    path: str = Field(min_length=1)
    content: str = ""
    mode: int = Field(default=0o644, ge=0, le=0o777)

    @model_validator(mode="after")
    def _stays_inside(self) -> Upload:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"path {self.path!r} leaves the working directory: give a relative path without '..'")
        return self


class Step(_Strict):
    """One step of `prepare`, `eval_prepare` or `post_run`: either a shell command or an upload."""

    exec: str | None = Field(default=None, min_length=1)
    upload: Upload | None = None
    budget_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _exactly_one(self) -> Step:
        if (self.exec is None) == (self.upload is None):
            raise ValueError("a step needs exactly one of 'exec' and 'upload'")
        return self


class EvaluatorSpec(_Strict):
    """How a session is graded: an evaluator's name (one that there is, or `module:Class`) and its options.

    `fresh` asks for a runtime of the evaluator's own, which `eval_prepare` (`prepare` where that is empty) makes ready while the
    agent runs; absent, the evaluator decides. `runtime` says what that one is; absent, it is like the session's.
    """

    name: str = Field(default="session_completed", min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)
    fresh: bool | None = None
    runtime: RuntimeSpec | None = None

    @model_validator(mode="after")
    def _runtime_is_fresh(self) -> EvaluatorSpec:
        if self.runtime is not None and self.fresh is False:
            raise ValueError("runtime describes a fresh runtime, but fresh is false: drop one of the two")
        return self


class BuilderSpec(_Strict):
    """How completions become traces."""

    name: Literal["prefix_merging", "per_request"] = "prefix_merging"
    options: dict[str, Any] = Field(default_factory=dict)


class Budgets(_Strict):
    """Seconds that each stage of a session may take, counted separately."""

    queue_s: float = Field(default=3600.0, gt=0)
    init_s: float = Field(default=300.0, gt=0)
    run_s: float = Field(default=1800.0, gt=0)
    postrun_s: float = Field(default=300.0, gt=0)
    evaluate_s: float = Field(default=300.0, gt=0)


class Sampling(_Strict):
    """Sampling parameters that the task pins; the harness' own values are recorded and overridden."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, description="of the first sample; each further one has the next number")


class TaskSpec(_Strict):
    """A task file: one prompt to solve, with how to run and grade it."""

    task_id: str | None = Field(default=None, min_length=1, description="derived from a fresh uuid when absent")
    instruction: str = Field(min_length=1)
    harness: HarnessSpec
    runtime: RuntimeSpec = RuntimeSpec()
    prepare: list[Step] = Field(default_factory=list)
    eval_prepare: list[Step] = Field(default_factory=list)
    post_run: list[Step] = Field(default_factory=list)
    evaluator: EvaluatorSpec = EvaluatorSpec()
    num_samples: int = Field(default=1, ge=1, le=10_000)
    min_usable: int | None = Field(default=None, ge=1)
    max_requeues: int = Field(default=1, ge=0, le=100, description="how often a trainer may have its group run again")
    sampling: Sampling = Sampling()
    history: Literal["sampled", "template"] = "sampled"
    builder: BuilderSpec = BuilderSpec()
    budgets: Budgets = Budgets()
    max_attempts: int = Field(default=2, ge=1, le=100)
    priority: int = 0
    policy_id: str = Field(default="default", min_length=1)
    for_trainer: str = Field(default="", description="the one trainer that reads the results; `evaluation`: none does")
    metadata: dict[str, Any] = Field(default_factory=dict)
    callback_url: str | None = Field(
        default=None,
        max_length=2000,
        pattern=r"^https?://[^\s/?#@]+([/?][^\s#]*)?$",
        description="where the HTTP API tells each session's end and the task's; its operator allows hosts",
    )
    callback_body: Literal["summary", "polar"] = Field(
        default="summary", description="what it is told: the ends, or Polar's whole TaskResult at the task's end"
    )

    @model_validator(mode="after")
    def _usable_fits(self) -> TaskSpec:
        if self.min_usable is not None and self.min_usable > self.num_samples:
            raise ValueError(f"min_usable {self.min_usable} is more than num_samples {self.num_samples}")
        return self
