"""The seam to an inference engine: tokens in, tokens and logprobs out, as they are sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

EngineFinishReason: TypeAlias = Literal["stop", "length", "abort"]

Alternatives: TypeAlias = Sequence[tuple[float, int]]
"""(logprob, token id) of the most likely tokens at one place, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One generation: `input_ids` is the whole prompt; `sampling` uses the names of `ChatRequest.sampling` plus `stop_token_ids`.

    `rid` is the engine's request id (abort goes by it), `session_id` the affinity key, `timeout_s` the deadline of the whole call.
    """

    rid: str
    session_id: str
    input_ids: list[int]
    sampling: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0
    top_logprobs: int = 0
    """How many alternatives per output token are wanted."""


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Output tokens [start, end) were sampled under weight version `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinish:
    """How a generation ended. `matched` is the stop token id or stop string; `prompt_ids` the engine's echo of the prompt, if it gave one.

    `is_resumable` marks an abort by the engine itself (a weight update) whose tokens are good and could be continued.
    """

    reason: EngineFinishReason
    matched: int | str | None = None
    message: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    weight_spans: tuple[WeightSpan, ...] = ()
    prompt_ids: list[int] | None = None


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """What is new since the last chunk: output ids with one logprob (float32 range) each; `finish` on the last chunk only."""

    new_ids: list[int]
    new_logprobs: list[float]
    finish: EngineFinish | None = None
    new_top: list[Alternatives] = field(default_factory=list)
    """Per new id its most likely alternatives; empty unless they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine says of itself. `gaps` names what it can't give (for example `no_logprobs`), in words for an operator."""

    kind: str
    url: str
    model: str
    weight_version: str
    context_length: int | None = None
    logprobs_mode: str = "processed"
    gaps: tuple[str, ...] = ()


class EngineStream(Protocol):
    """An accepted generation: iterate to get chunks. `status` is the engine's HTTP status (200)."""

    status: int

    def __aiter__(self) -> AsyncIterator[EngineChunk]: ...


class Engine(Protocol):
    """An inference engine. All failures are `ProxyError`s of kind overloaded, engine_unavailable, engine_error, context_overflow or bad_request."""

    kind: str
    url: str

    def generate(self, request: GenerateRequest) -> AbstractAsyncContextManager[EngineStream]:
        """Starts a generation; entering waits for the engine's status. Leaving before the finish aborts it in the engine."""
        ...

    async def probe(self, timeout_s: float = 5.0) -> EngineInfo:
        """Asks the engine what it is."""
        ...

    async def abort(self, rid: str) -> None:
        """Asks the engine to stop a request; never raises."""
        ...

    async def close(self) -> None:
        """Gives the pooled connections back."""
        ...
