"""The values that a model call is made of inside the proxy, and the line protocol that carries a reply to the transcoder.

A dialect turns bytes into a `ChatRequest` and `ReplyEvent`s into bytes; the tap makes the events. Between the tap and the
transcoder every event is one JSON line (`to_line`, `from_line`, `LineReader`); a line that starts with `:` is silence that the
transcoder must show to its client as a keep-alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson

Json: TypeAlias = Any
"""A plain JSON value: None, bool, int, float, str, list or dict."""

ErrorKind: TypeAlias = Literal[
    "unauthorized",
    "lease_ended",
    "bad_request",
    "context_overflow",
    "overloaded",
    "engine_unavailable",
    "engine_error",
    "not_found",
    "too_large",
    "internal",
]

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]

_STATUS: dict[ErrorKind, int] = {
    "unauthorized": 401,
    "lease_ended": 409,
    "bad_request": 400,
    "context_overflow": 400,
    "overloaded": 429,
    "engine_unavailable": 503,
    "engine_error": 500,  # every harness retries a 500; some give up at a 502
    "not_found": 404,
    "too_large": 413,
    "internal": 500,
}

_RETRY_AFTER_S: dict[ErrorKind, float] = {"overloaded": 2.0, "engine_unavailable": 2.0}
"""A 429 without `Retry-After` ends one harness' run at once, so the kinds that invite a retry always carry one."""


class ProxyError(Exception):
    """Why a call has no (complete) reply: a kind that every dialect knows how to say, and the HTTP status that goes with it.

    `status` and `retry_after_s` default to those of the kind. `param` names the request field at fault, where there is one.
    `code` is the vendor's own code for this very case, where it says more than the kind does.
    `context` is (tokens of the prompt, most tokens that fit) of a context overflow, where they are known: each vendor words it otherwise.
    """

    __slots__ = ("code", "context", "kind", "message", "param", "retry_after_s", "status")

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        param: str | None = None,
        code: str | None = None,
        context: Sequence[int] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.status = status if status is not None else _STATUS[kind]
        self.retry_after_s = retry_after_s if retry_after_s is not None else _RETRY_AFTER_S.get(kind)
        self.param = param
        self.code = code
        self.context = (context[0], context[1]) if context else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProxyError) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __repr__(self) -> str:
        return f"ProxyError({self.kind!r}, {self.message!r}, status={self.status}, retry_after_s={self.retry_after_s})"

    def _facts(self) -> tuple[object, ...]:
        return (self.kind, self.message, self.status, self.retry_after_s, self.param, self.code, self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A generating request of any dialect, normalised to OpenAI Chat.

    `messages` hold only the keys role, content, reasoning_content, tool_calls, tool_call_id and name; `content` is a string, or a
    list of text and image_url parts when it holds an image; tool-call `arguments` are JSON strings. `tools` are OpenAI function
    tools. `sampling` uses the names temperature, top_p, top_k, min_p, max_tokens, stop (list of strings), seed, frequency_penalty,
    presence_penalty, repetition_penalty. `notes` lists what was ignored, dropped or repaired, each once, sorted.
    """

    dialect: str
    model: str
    messages: list[dict[str, Json]]
    tools: list[dict[str, Json]] = field(default_factory=list)
    tool_choice: Json = None
    parallel_tool_calls: bool = True
    sampling: dict[str, Json] = field(default_factory=dict)
    response_format: dict[str, Json] | None = None
    stream: bool = False
    include_usage: bool = False
    template_kwargs: dict[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    turn_ids: tuple[str, ...] = ()
    """Per message the completion id that the client echoed for it in an opaque field, "" for none; () when there is none at all."""
    continues: str = ""
    """The completion whose conversation (its messages and its reply) stands before `messages`, where the API lets a client send
    only what is new (`previous_response_id`)."""
    recalls: tuple[str, ...] = ()
    """Per message the id of an item that stands for it: the answer of the completion in `turn_ids`, which the client only names; ""
    for a message that is there. () when there is none at all."""
    has_instructions: bool = False
    """`messages[0]` is this request's own instructions: a request that continues it brings its own, or has none."""
    top_logprobs: int | None = None
    """None: the client wants no logprobs; else how many alternatives per token it wants to see beside the sampled one."""
    deferred_tools: tuple[str, ...] = ()
    """Names of tools that aren't in `tools` but may be called: the conversation itself introduces them."""
    echo: dict[str, Json] = field(default_factory=dict)
    """What the dialect's own answer depends on or repeats (JSON); `Reply.echo` carries it back, nobody else looks inside."""

    @property
    def is_parsing_tools(self) -> bool:
        """Whether the reply may be read as tool calls: not when the client offers none or forbids them."""
        return bool(self.tools) and self.tool_choice != "none"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as parsed: `arguments` is the sampled JSON text; `span` its half-open token range in the output ids."""

    id: str
    name: str
    arguments: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of the visible text as a client with `logprobs` sees it: its text and bytes, and the most likely ones in its place."""

    token: str
    data: list[int]
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A finished reply as the client is told it. `created_at` is UTC epoch ms; token counts are the engine's.

    `logprobs` are those of the visible text's tokens; None unless the client asked for them.
    """

    completion_id: str
    model: str
    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    stop_sequence: str | None = None
    created_at: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    echo: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    """The engine accepted the call. `created_at` is UTC epoch ms."""

    completion_id: str
    model: str
    created_at: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the visible answer."""

    text: str


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Nothing happened for a while; the client must see a sign of life."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The record is durable: the reply may end and its tool calls may leave."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Failed:
    """The call ends with an error; nothing follows."""

    error: ProxyError


ReplyEvent: TypeAlias = Started | ReasoningDelta | TextDelta | KeepAlive | Finished | Failed


def tool_call_id(completion_id: str, index: int) -> str:
    """The id of a completion's `index`-th tool call: unique across calls and restarts, equal when computed again."""
    return f"call_{completion_id.replace('-', '')}_{index}"


_ERROR_FACTS = ("kind", "message", "status", "retry_after_s", "param", "code", "context")


def to_line(event: ReplyEvent) -> bytes:
    """One event as one line, newline included."""
    match event:
        case TextDelta(text):
            return b'{"e":"text","d":' + orjson.dumps(text) + b"}\n"
        case ReasoningDelta(text):
            return b'{"e":"reasoning","d":' + orjson.dumps(text) + b"}\n"
        case KeepAlive():
            return b":\n"
        case Started():
            return orjson.dumps({"e": "started", "d": event}) + b"\n"
        case Finished(reply):
            return orjson.dumps({"e": "finished", "d": reply}) + b"\n"
        case Failed(error):
            facts = {name: getattr(error, name) for name in _ERROR_FACTS}
            return orjson.dumps({"e": "failed", "d": facts}) + b"\n"


def from_line(line: bytes) -> ReplyEvent:
    """The event of one line (with or without its newline). Raises ValueError for anything `to_line` can't have made."""
    if line.startswith(b":"):
        return KeepAlive()
    try:
        value = orjson.loads(line)
        kind, data = value["e"], value["d"]
        if kind == "text":
            return TextDelta(data)
        if kind == "reasoning":
            return ReasoningDelta(data)
        if kind == "started":
            return Started(**data)
        if kind == "finished":
            calls = tuple(
                ToolCall(call["id"], call["name"], call["arguments"], tuple(call["span"]) if call["span"] else None)
                for call in data.pop("tool_calls")
            )
            logprobs = data.pop("logprobs", None)
            return Finished(
                Reply(**data, tool_calls=calls, logprobs=None if logprobs is None else tuple(map(_logprob, logprobs)))
            )
        if kind == "failed":
            return Failed(ProxyError(data.pop("kind"), data.pop("message"), **data))
    except (KeyError, TypeError, AttributeError, orjson.JSONDecodeError) as error:
        raise ValueError(f"not a reply line: {line[:80]!r}: {error}") from error
    raise ValueError(f"unknown reply event {kind!r}: the tap and the transcoder must be of one version")


def _logprob(data: dict[str, Any]) -> TokenLogprob:
    return TokenLogprob(data["token"], data["data"], data["logprob"], tuple(map(_logprob, data["top"])))


class LineReader:
    """Cuts a byte stream that arrives in arbitrary pieces into reply events."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterable[ReplyEvent]:
        """The events completed by `data`, in order."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [from_line(line) for line in lines if line]
