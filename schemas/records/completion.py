"""Records of model calls, as the capture proxy publishes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from schemas import ids
from schemas.records.base import Boundary, Dialect, IdBytes, Json, LogprobBytes, Record, WireEnum
from schemas.records.session import SessionSpec


class CompletionState(WireEnum):
    """How a call ended."""

    UNKNOWN = "UNKNOWN"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"


class LineageStatus(WireEnum):
    """How a call's parent was found."""

    UNKNOWN = "UNKNOWN"
    NONE = "none"
    ROOT = "root"
    RESOLVED = "resolved"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, kw_only=True)
class VersionSpan:
    """The tokens [start, end) of a reply that one version of the weights sampled; the version as the engine names it."""

    version: str = ""
    start: int = 0
    end: int = 0


@dataclass(frozen=True, kw_only=True)
class CallError:
    """Why a call failed: its class, the HTTP status that the harness saw (0: none) and the boundary at fault."""

    kind: str = ""
    status: int = 0
    boundary: Boundary = Boundary.NONE
    message: str = ""


class _OfWriter(Record):
    """Records that one writer of a lease puts into capture.completions."""

    __slots__ = ()

    TOPIC: ClassVar[str] = "capture.completions"

    session_id: str

    @property
    def key(self) -> str:
        """session_id."""
        return self.session_id


@dataclass(frozen=True, kw_only=True)
class SessionOpened(_OfWriter):
    """Fact: a proxy opened a lease as writer number `writer`."""

    NAME: ClassVar[str] = "session_opened"

    session_id: str = ""
    lease_id: str = ""
    attempt: int = 1
    writer: int = 1
    takes_over: int = 0
    secret_hash: str = ""
    proxy_id: str = ""
    spec: SessionSpec | None = None
    opened_at: int = 0

    @property
    def identity(self) -> tuple[object, ...]:
        """One opening per writer of a lease."""
        return (self.lease_id, self.writer)


@dataclass(frozen=True, kw_only=True)
class CompletionRecord(_OfWriter):
    """Fact: one model call and its answer, token by token.

    The prompt is `prefix_len` tokens of the parent's prompt + output (digest `prefix_digest`) followed by
    `suffix_ids`; without a parent the suffix is the whole prompt. `messages` is a delta of the same kind:
    `messages_prefix` messages stand in the parent. `spans` in `tool_calls` count tokens of `output_ids`.
    """

    NAME: ClassVar[str] = "completion_record"

    session_id: str = ""
    group_id: str = ""
    task_id: str = ""
    policy_id: str = ""
    attempt: int = 1
    lease_id: str = ""
    writer: int = 1
    call_seq: int = 0
    completion_id: str = ""
    proxy_id: str = ""
    state: CompletionState = CompletionState.UNKNOWN
    dialect: Dialect = Dialect.UNKNOWN
    harness: str = ""
    model_requested: str = ""
    request_digest: str = ""
    is_stream: bool = False
    started_at: int = 0
    finished_at: int = 0

    messages: Json = field(default_factory=list)
    messages_prefix: int = 0
    tools: Json = field(default_factory=list)
    tools_digest: str = ""
    sampling_requested: Json = field(default_factory=dict)
    sampling_effective: Json = field(default_factory=dict)
    template_options: Json = field(default_factory=dict)

    lineage: LineageStatus = LineageStatus.NONE
    lineage_reason: str = ""
    parent_id: str = ""
    prefix_len: int = 0
    prefix_digest: str = ""
    suffix_ids: IdBytes = b""
    prompt_len: int = 0
    is_checkpoint: bool = False

    output_ids: IdBytes = b""
    logprobs: LogprobBytes = b""
    logprobs_mode: str = ""
    finish_reason: str = ""
    engine_finish: Json = None
    text: str = ""
    reasoning: str = ""
    tool_calls: Json = field(default_factory=list)
    parse_status: str = ""
    version_spans: list[VersionSpan] = field(default_factory=list)
    engine: str = ""
    engine_url: str = ""
    tokenizer_digest: str = ""
    template_digest: str = ""
    prompt_echo: str = ""

    trainable: bool = False
    untrainable_reason: str = ""
    branch_hint: str = ""
    error: CallError | None = None
    notes: Json = field(default_factory=dict)

    queue_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0

    @property
    def identity(self) -> tuple[object, ...]:
        """One record per call number of a writer."""
        return (self.lease_id, self.writer, self.call_seq)


@dataclass(frozen=True, kw_only=True)
class CompletionDelivery(_OfWriter):
    """Fact: the terminal event of a call was handed to the transport (or the client had left before)."""

    NAME: ClassVar[str] = "completion_delivery"

    session_id: str = ""
    lease_id: str = ""
    writer: int = 1
    call_seq: int = 0
    completion_id: str = ""
    delivered: bool = False
    reason: str = ""
    at: int = 0

    @property
    def identity(self) -> tuple[object, ...]:
        """Facts for one call merge by OR, so each value is a fact of its own."""
        return (self.lease_id, self.writer, self.call_seq, self.delivered)


@dataclass(frozen=True, kw_only=True)
class SessionSealed(_OfWriter):
    """Fact: a writer will add no further call; its calls are 1 … last_seq (0: none)."""

    NAME: ClassVar[str] = "session_sealed"

    session_id: str = ""
    lease_id: str = ""
    attempt: int = 1
    writer: int = 1
    last_seq: int = 0
    reason: str = ""
    proxy_id: str = ""
    sealed_at: int = 0

    @property
    def identity(self) -> tuple[object, ...]:
        """One seal per writer of a lease."""
        return (self.lease_id, self.writer)


@dataclass(frozen=True, kw_only=True)
class Rejection(Record):
    """Fact: a request was refused before it became a call."""

    NAME: ClassVar[str] = "rejection"
    TOPIC: ClassVar[str] = "capture.rejections"

    rejection_id: str = ""
    reason: str = ""
    status: int = 0
    dialect: Dialect = Dialect.UNKNOWN
    secret_hash: str = ""
    session_id: str = ""
    method: str = ""
    path: str = ""
    host: str = ""
    proxy_id: str = ""
    request_bytes: int = 0
    details: Json = field(default_factory=dict)
    at: int = 0

    @property
    def key(self) -> str:
        """The reason, so that one kind stays in order."""
        return self.reason

    @property
    def identity(self) -> tuple[object, ...]:
        """Each refusal is its own fact."""
        return (self.rejection_id or ids.derive("rejection", self.proxy_id, self.at, self.path),)
