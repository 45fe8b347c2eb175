"""The seam to an inference engine: tokens (or messages) in, tokens and logprobs out, as they are sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

EngineFinishReason: TypeAlias = Literal["stop", "length", "abort"]

Alternatives: TypeAlias = Sequence[tuple[float, int]]
"""(logprob, token id) of the most likely tokens at one place, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation for an engine that renders by itself (text-in): OpenAI Chat messages and what belongs to them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """None: as long as the engine's context allows. The proxy counts tokens of its own rendering, so it can't name the rest exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One generation: `input_ids` is the whole prompt; `sampling` uses the names of `ChatRequest.sampling` plus `stop_token_ids`.

    `rid` is the engine's request id (abort goes by it), `session_id` the affinity key, `timeout_s` the deadline of the whole call.
    `chat` is what a text-in engine gets instead of `input_ids`.
    """

    rid: str
    session_id: str
    input_ids: Sequence[int]
    sampling: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0
    top_logprobs: int = 0
    """How many alternatives per output token are wanted."""
    chat: ChatPrompt | None = None


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Output tokens [start, end) were sampled under weight version `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A tool call as an engine parsed it; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReply:
    """A whole reply as a text-in engine parsed it."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[EngineCall, ...] = ()
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinish:
    """How a generation ended. `matched` is the stop token id or stop string; `prompt_ids` the engine's own prompt ids, if it gave any.

    `fault` names what makes the captured tokens untrainable although the reply is fine (`ids_incomplete`, `mixed_version`).
    `reply` is there for a text-in engine, which parses by itself.
    """

    reason: EngineFinishReason
    matched: int | str | None = None
    message: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    weight_spans: tuple[WeightSpan, ...] = ()
    prompt_ids: list[int] | None = None
    fault: str = ""
    reply: EngineReply | None = None


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """What is new since the last chunk: output ids with one logprob (float32 range) each; `finish` on the last chunk only.

    Of a text-in engine also `text` and `reasoning`, as it parsed them; its ids and logprobs may come late, or never.
    """

    new_ids: list[int]
    new_logprobs: list[float]
    finish: EngineFinish | None = None
    new_top: list[Alternatives] = field(default_factory=list)
    """Per new id its most likely alternatives; empty unless they were asked for."""
    text: str = ""
    reasoning: str = ""
    prompt_ids: list[int] | None = None
    """Of a text-in engine: the prompt as it rendered it, as soon as that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine says of itself. `gaps` says what it can't give, in words for an operator.

    `logprobs_mode` says of which distribution its logprobs are: `raw` (before temperature), `temperature` (after it, before top_p
    and top_k cut), `processed` (after both), `none`, or "" where that isn't known.
    """

    kind: str
    url: str
    model: str
    weight_version: str = ""
    context_length: int | None = None
    logprobs_mode: str = ""
    gaps: tuple[str, ...] = ()
    gives_ids: bool = True
    """Whether a trainer can be given what this engine samples: ids of prompt and output."""


class EngineStream(Protocol):
    """An accepted generation: iterate to get chunks. `status` is the engine's HTTP status (200)."""

    status: int

    def __aiter__(self) -> AsyncIterator[EngineChunk]: ...


class Engine(Protocol):
    """An inference engine. All failures are `ProxyError`s of kind overloaded, engine_unavailable, engine_error, context_overflow or bad_request."""

    @property
    def kind(self) -> str:
        """Which client this is: sglang, vllm, vllm_chat or openai."""
        ...

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        ...

    @property
    def is_text_in(self) -> bool:
        """Whether the engine renders the conversation itself: it gets `GenerateRequest.chat`."""
        ...

    def generate(self, request: GenerateRequest) -> AbstractAsyncContextManager[EngineStream]:
        """Starts a generation; entering waits for the engine's status. Leaving before the finish aborts it in the engine."""
        ...

    async def probe(self, prompt_ids: Sequence[int], timeout_s: float = 5.0) -> EngineInfo:
        """Asks the engine what it is, and tries out what it gives: two tokens are sampled after a prompt of ours."""
        ...

    def untold(self, sampling: Mapping[str, Any]) -> list[str]:
        """Sampling parameters that its interface has no word for, though they would change what is sampled."""
        ...

    async def tokenize(self, text: str) -> list[int] | None:
        """The engine's ids of plain text, nothing added; None where it doesn't tell. Raises ProxyError."""
        ...

    async def render(self, messages: list[dict[str, Any]]) -> list[int] | None:
        """The engine's own prompt ids of a conversation, ready for the answer; None where it doesn't tell. Raises ProxyError."""
        ...

    async def abort(self, rid: str) -> None:
        """Asks the engine to stop a request; never raises."""
        ...

    async def close(self) -> None:
        """Gives the pooled connections back."""
        ...
