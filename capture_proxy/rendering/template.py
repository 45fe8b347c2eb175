"""A model's own chat template, through transformers: works for every model that ships one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capture_proxy.rendering.base import ReplyParser
from capture_proxy.rendering.calls import CallFormat, read_json_calls, read_xml_calls
from capture_proxy.rendering.detokenizer import ByteDetokenizer, ByteTable, Detokenizer, WindowDetokenizer
from capture_proxy.rendering.parser import THINK, THINK_END, MarkParser
from capture_proxy.rendering.prepare import for_template, without_system_turns
from capture_proxy.reply import ProxyError

_STAND_IN = "\u2063answer\u2063"
"""Stands for an earlier answer while its turn's end is looked for; invisible separators make it unlike any real text."""

_TAIL_IDS = 16
"""How many ids at the end of a prompt can tell whether it opens a thinking block."""

_MARKS = frozenset({THINK, THINK_END, "<tool_call>", "</tool_call>"})
"""Never hidden from the parser, even by a tokenizer that calls them special."""


class TemplateRenderer:
    """A `Renderer` on a transformers tokenizer. Thread-safe after construction."""

    name = "template"

    def __init__(
        self, tokenizer: Any, *, tokenizer_digest: str, stop_token_ids: Sequence[int] = (), is_byte_level: bool
    ) -> None:
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._template = (
            tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else tokenizer.get_chat_template()
        )
        self.tokenizer_digest = tokenizer_digest
        self.template_digest = hashlib.sha256(self._template.encode()).hexdigest()
        added: dict[int, Any] = dict(tokenizer.added_tokens_decoder)
        self._hidden_ids = frozenset(i for i, token in added.items() if token.special and token.content not in _MARKS)
        self._table = ByteTable(
            self._backend, hidden_ids=self._hidden_ids, added={i: token.content for i, token in added.items()}
        )
        self._is_byte_level = is_byte_level
        self._turn_end = self._find_turn_end({token.content: i for i, token in added.items()})
        self.end_of_turn_id = self._turn_end[1] if self._turn_end else None
        ends = [self.end_of_turn_id] if self.end_of_turn_id is not None else []
        self.stop_token_ids = tuple(dict.fromkeys([*ends, *stop_token_ids]))
        self._call_format: CallFormat = read_xml_calls if "<function=" in self._template else read_json_calls

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int]:
        """Prompt ids of a conversation, ready for the assistant's answer."""
        return self.encode(self.render_text(for_template(messages), tools, template_kwargs))

    def render_text(
        self, prepared: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]
    ) -> str:
        """The prompt's text. A template that refuses the shape of the conversation gets a plainer one before we give up."""
        kwargs = {key: value for key, value in template_kwargs.items() if key not in _RESERVED}
        kwargs |= {"tools": list(tools) or None, "tokenize": False, "add_generation_prompt": True}
        attempts: list[Callable[[], list[dict[str, Any]]]] = [
            lambda: prepared,
            lambda: without_system_turns(prepared),
            lambda: _with_object_arguments(without_system_turns(prepared)),
        ]
        reason = ""
        for attempt in attempts:
            try:
                return str(self.tokenizer.apply_chat_template(attempt(), **kwargs))
            except Exception as error:  # noqa: BLE001 - a template is a program of someone else's: it may raise anything
                reason = reason or f"{type(error).__name__}: {error}"
        raise ProxyError(
            "bad_request", f"the model's chat template can't render this conversation: {reason}", param="messages"
        )

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
        """`prompt_ids + output_ids`, closed by the end-of-turn token if it was cut, plus the ids of what follows that turn.

        The text that follows is taken from a rendering with a stand-in for the answer: what the template does to older turns
        doesn't matter. It begins right after a special token, so its encoding doesn't depend on what stands before.
        """
        if (
            self._turn_end is None
            or not 0 < new_from < len(messages)
            or messages[new_from - 1].get("role") != "assistant"
        ):
            return None
        prepared = for_template(messages)
        prepared[new_from - 1] = _stand_in(prepared[new_from - 1])
        try:
            text = self.render_text(prepared, tools, template_kwargs)
        except ProxyError:
            return None
        end_text, end_id = self._turn_end
        answer = text.rfind(_STAND_IN)
        end = text.find(end_text, answer) if answer >= 0 else -1
        if end < 0:
            return None
        closing = [] if output_ids and output_ids[-1] == end_id else [end_id]
        return [*prompt_ids, *output_ids, *closing, *self.encode(text[end + len(end_text) :])]

    def parser(
        self,
        prompt_ids: Sequence[int],
        *,
        is_parsing_tools: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
    ) -> ReplyParser:
        """A parser for the output to this prompt."""
        return MarkParser(
            self.detokenizer(),
            is_in_reasoning=self.is_in_reasoning(prompt_ids),
            call_format=self._call_format if is_parsing_tools else None,
            tools=tools,
            stop=stop,
        )

    def is_in_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends with an opened thinking block, so that the output begins inside it."""
        tail = self.decode(prompt_ids[-_TAIL_IDS:])
        _, opening, after = tail.rpartition(THINK)
        return bool(opening) and not after.strip()

    def detokenizer(self) -> Detokenizer:
        """An incremental decoder for one output; special tokens are hidden, thinking and tool marks are not."""
        if self._is_byte_level:
            return ByteDetokenizer(self._table)
        return WindowDetokenizer(self._decode_visible)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, nothing added."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def _decode_visible(self, ids: Sequence[int]) -> str:
        return str(self._backend.decode([i for i in ids if i not in self._hidden_ids], skip_special_tokens=False))

    def _find_turn_end(self, ids_of_added: Mapping[str, int]) -> tuple[str, int] | None:
        """The added token that the template prints right after an answer: its text and id."""
        probe = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _STAND_IN}]
        try:
            text = self.render_text(probe, (), {})
        except ProxyError:
            return None
        after = text.rpartition(_STAND_IN)[2].lstrip()
        found = [token for token in ids_of_added if token and after.startswith(token)]
        longest = max(found, key=len, default=None)
        return None if longest is None else (longest, ids_of_added[longest])


_RESERVED = frozenset(
    {
        "tools",
        "tokenize",
        "add_generation_prompt",
        "messages",
        "conversation",
        "chat_template",
        "return_dict",
        "return_tensors",
    }
)
"""Names that a client's template arguments must not set."""


def _with_object_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates that demand objects: arguments that aren't one, wrapped."""
    return [
        {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if isinstance(function["arguments"], dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": {"_unparsed": function["arguments"]}}}


def _stand_in(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer of the same shape without content of its own, so that no text in it can look like a turn's end."""
    plain: dict[str, Any] = {"role": "assistant", "content": _STAND_IN}
    if calls := answer.get("tool_calls"):
        plain["tool_calls"] = [
            {**call, "function": {"name": call["function"]["name"], "arguments": {}}} for call in calls
        ]
    return plain
