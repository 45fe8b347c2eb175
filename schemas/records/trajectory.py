"""Records of trajectories: what the assembler builds, what graders add, what trainers read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from schemas.records.base import (
    Boundary,
    IdBytes,
    Json,
    LateJson,
    LogprobBytes,
    MaskBytes,
    ReadsLate,
    Record,
    Status,
    WireEnum,
)
from schemas.records.completion import VersionSpan
from schemas.records.session import SessionSpec


class CallDisposition(WireEnum):
    """The one state in which a call ends."""

    UNKNOWN = "UNKNOWN"
    TRAINED = "trained"
    CONTEXT = "context"
    UNTRAINABLE = "untrainable"


@dataclass(frozen=True, kw_only=True)
class CallState:
    """How one captured call counts in a trajectory; `trace` is the trace in which it is trained (-1: none)."""

    completion_id: str = ""
    lease_id: str = ""
    writer: int = 1
    call_seq: int = 0
    disposition: CallDisposition = CallDisposition.UNKNOWN
    reason: str = ""
    trace: int = -1
    is_delivered: bool | None = None


@dataclass(frozen=True, kw_only=True)
class TurnSpan:
    """One turn of a trace: the tokens [start, end) of `response_ids` that a call sampled."""

    completion_id: str = ""
    start: int = 0
    end: int = 0
    is_trained: bool = False
    fidelity: str = "exact"
    version_spans: list[VersionSpan] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Trace(ReadsLate):
    """One token sequence with its loss mask.

    `response_ids`, `loss_mask` and `logprobs` have equal length; the mask is 1 on sampled tokens only and
    `logprobs` is 0.0 where it is 0. `prefix_break`: how many tokens of its prompt an earlier call of the session has, too,
    where a trace begins anew (-1: it is the first one, or a branch of another trace).
    """

    index: int = 0
    branch: str = "main"
    parent_trace: int = -1
    root_reason: str = ""
    prompt_ids: IdBytes = b""
    response_ids: IdBytes = b""
    loss_mask: MaskBytes = b""
    logprobs: LogprobBytes = b""
    turns: list[TurnSpan] = field(default_factory=list)
    messages: LateJson = field(default_factory=list)
    tools: LateJson = field(default_factory=list)
    finish_reason: str = ""
    is_off_context: bool = False
    weight: float = 1.0
    reward: float | None = None
    prefix_break: int = -1


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The sums of a trajectory: calls = trained + context + all of untrainable."""

    calls: int = 0
    trained: int = 0
    context: int = 0
    untrainable: dict[str, int] = field(default_factory=dict)
    traces: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    trainable_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class CaptureGap:
    """A writer whose calls after `after_seq` never reached the log."""

    writer: int = 1
    after_seq: int = 0


@dataclass(frozen=True, kw_only=True)
class Trajectory(Record):
    """Fact: all traces of one lease of a session, with the state of every call.

    Calls that came after revision 1 was published make a further `revision` under the same id, which replaces the earlier ones.
    """

    NAME: ClassVar[str] = "trajectory"
    TOPIC: ClassVar[str] = "trajectory.built"

    trajectory_id: str = ""
    session_id: str = ""
    group_id: str = ""
    task_id: str = ""
    policy_id: str = ""
    lease_id: str = ""
    attempt: int = 1
    builder: str = ""
    builder_options: Json = field(default_factory=dict)
    content_digest: str = ""
    traces: list[Trace] = field(default_factory=list)
    calls: list[CallState] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    capture_incomplete: list[CaptureGap] = field(default_factory=list)
    tokenizer_digest: str = ""
    logprobs_mode: str = ""
    built_at: int = 0
    revision: int = 1

    @property
    def key(self) -> str:
        """session_id."""
        return self.session_id

    @property
    def identity(self) -> tuple[object, ...]:
        """A trajectory with the same content is the same fact."""
        return (self.trajectory_id, self.content_digest)


@dataclass(frozen=True, kw_only=True)
class Reward(Record):
    """Fact: a grader's verdict on one lease's trajectory.

    `run` names the grading that gave it: empty for the session's own, else one of those made later. So a verdict that returns
    to an earlier value is a fact of its own.
    """

    NAME: ClassVar[str] = "reward"
    TOPIC: ClassVar[str] = "reward.assigned"

    session_id: str = ""
    lease_id: str = ""
    trajectory_id: str = ""
    name: str = "reward"
    value: float = 0.0
    trace_rewards: list[float] | None = None
    grader: str = ""
    grader_version: str = ""
    provenance: str = "evaluator"
    details: Json = field(default_factory=dict)
    at: int = 0
    run: str = ""

    @property
    def key(self) -> str:
        """session_id."""
        return self.session_id

    @property
    def identity(self) -> tuple[object, ...]:
        """The same verdict of the same grader in the same grading is the same fact; another value is a revision."""
        traces = "" if self.trace_rewards is None else repr(self.trace_rewards)
        grader = (self.grader, self.grader_version)
        named = (self.session_id, self.lease_id, self.name, *grader, repr(self.value), traces)
        return (*named, self.run) if self.run else named


@dataclass(frozen=True, kw_only=True)
class RewardValue:
    """A reward as a scored trajectory carries it."""

    name: str = ""
    value: float = 0.0
    trace_rewards: list[float] | None = None
    grader: str = ""
    grader_version: str = ""
    provenance: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoredTrajectory(Record):
    """Fact: a session's result for trainers, one per session and revision; without traces when the session failed."""

    NAME: ClassVar[str] = "scored_trajectory"
    TOPIC: ClassVar[str] = "trajectory.scored"

    session_id: str = ""
    group_id: str = ""
    task_id: str = ""
    policy_id: str = ""
    trajectory_id: str = ""
    lease_id: str = ""
    attempt: int = 1
    revision: int = 1
    content_digest: str = ""
    status: Status = Status.NONE
    boundary: Boundary = Boundary.NONE
    error: str = ""
    reward: float | None = None
    rewards: list[RewardValue] = field(default_factory=list)
    trajectory: Trajectory | None = None
    spec: SessionSpec | None = None
    tokenizer_digest: str = ""
    logprobs_mode: str = ""
    ended_at: int = 0
    scored_at: int = 0

    @property
    def key(self) -> str:
        """group_id."""
        return self.group_id

    @property
    def identity(self) -> tuple[object, ...]:
        """A consumer de-duplicates by trajectory and revision; the digest tells revisions apart."""
        return (self.trajectory_id, self.session_id, self.content_digest)

    @property
    def is_rewarded(self) -> bool:
        """Whether it has a verdict that one can reckon with."""
        return self.verdict is not None

    @property
    def verdict(self) -> float | None:
        """The reward, where it is a number that one can reckon with."""
        return self.reward if self.reward is not None and math.isfinite(self.reward) else None

    @property
    def is_usable(self) -> bool:
        """Whether it counts towards a group's `min_usable`: it completed, has a verdict, and a token to train."""
        tokens = self.trajectory.counts.trainable_tokens if self.trajectory is not None else 0
        return self.status is Status.COMPLETED and self.is_rewarded and tokens > 0
