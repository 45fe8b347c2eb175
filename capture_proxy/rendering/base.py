"""The seam to a model's text format: conversations to prompt ids, sampled ids back to a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from capture_proxy.reply import ReasoningDelta, TextDelta

ParseStatus: TypeAlias = Literal["ok", "tool_parse_error"]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call read from the output: `arguments` as sampled (a JSON object's text), `span` its half-open token range."""

    name: str
    arguments: str
    span: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A whole output: the concatenation of all text deltas is `text`, of all reasoning deltas `reasoning`."""

    text: str
    reasoning: str
    tool_calls: tuple[ParsedCall, ...]
    status: ParseStatus
    reasoning_tokens: int = 0


class ReplyParser(Protocol):
    """Reads one output token by token. `feed` as ids come; then `finish` once for the last deltas and the whole."""

    @property
    def matched_stop(self) -> str | None:
        """The stop string that the text has reached, where that is known before the end."""
        ...

    def feed(self, ids: Sequence[int]) -> list[ReasoningDelta | TextDelta]:
        """What the new ids let through. Text from a tool call's opening mark on is held until `finish`."""
        ...

    def finish(self, *, is_cut: bool = False) -> tuple[list[ReasoningDelta | TextDelta], ParsedReply]:
        """The remaining deltas and the parsed whole.

        A reply with a malformed tool call has no calls: they are the text that was sampled. Of a reply that the limit of its length
        cut inside a call (`is_cut`), the calls before stay calls, and the cut one is text.
        """
        ...


class Renderer(Protocol):
    """A model's tokenizer and chat format. Thread-safe: rendering long prompts belongs in a worker thread."""

    name: str
    tokenizer_digest: str
    template_digest: str
    stop_token_ids: tuple[int, ...]
    end_of_turn_id: int | None
    vocab_size: int
    """Every id that the model can sample is below it; 0: unknown."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int]:
        """Prompt ids of a conversation, ready for the assistant's answer. Raises ProxyError(bad_request)."""
        ...

    def extend(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        *,
        new_from: int,
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int] | None:
        """Prompt ids that keep an earlier call's ids in front: `prompt_ids + output_ids + encode(what follows that turn)`.

        `messages[new_from - 1]` is the answer that `output_ids` is; `messages[new_from:]` is new. None: no faithful extension
        exists, render from text.
        """
        ...

    def parser(
        self,
        prompt_ids: Sequence[int],
        *,
        is_parsing_tools: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
    ) -> ReplyParser:
        """A parser for the output to this prompt, which may end inside an opened thinking block.

        `stop` are the request's stop strings: engines return the tokens of a matched one, clients must not see it.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to an output's visible text; empty for hidden special tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, nothing added."""
        ...
