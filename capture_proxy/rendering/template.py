"""A model's own chat template: works for every model that ships one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capture_proxy.rendering.base import ReplyParser
from capture_proxy.rendering.calls import CallFormat, read_json_calls, read_xml_calls
from capture_proxy.rendering.detokenizer import ByteDetokenizer, ByteTable, Detokenizer, WindowDetokenizer
from capture_proxy.rendering.jinja import ChatTemplate
from capture_proxy.rendering.parser import THINK, THINK_END, MarkParser
from capture_proxy.rendering.prepare import for_template, without_system_turns
from capture_proxy.rendering.tokenizer import ModelTokenizer
from capture_proxy.reply import ProxyError

_STAND_IN = "\u2063answer\u2063"
"""Stands for an earlier answer while its turn's end is looked for; invisible separators make it unlike any real text."""

_TAIL_IDS = 16
"""How many ids at the end of a prompt can tell whether it opens a thinking block."""

_MARKS = frozenset({THINK, THINK_END, "<tool_call>", "</tool_call>"})
"""Never hidden from the parser, even by a tokenizer that calls them special."""


_QUESTION: dict[str, Any] = {"role": "user", "content": "?"}
_PROBE_CALL: dict[str, Any] = {"id": "call_0", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
_SAID: dict[str, Any] = {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}
_CALLED: dict[str, Any] = {**_SAID, "tool_calls": [_PROBE_CALL]}
_RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_0", "content": "a.txt"}
_PROBE_TOOLS = [{"type": "function", "function": {"name": "ls", "description": "", "parameters": {"type": "object"}}}]
_TAIL_PROBES: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (_SAID, [_QUESTION]),
    (_CALLED, [_RESULT]),
    (_CALLED, [_RESULT, _RESULT]),
    (_CALLED, [_RESULT, _QUESTION]),
    (_SAID, [_QUESTION, _SAID, _QUESTION]),
    (_CALLED, [_RESULT, _CALLED, _RESULT]),
    (_SAID, [{"role": "system", "content": "Note."}, _QUESTION]),
]
"""An answer and what may follow it."""
_TAIL_CONTEXTS: list[list[dict[str, Any]]] = [
    [{"role": "system", "content": "Be brief."}, _QUESTION],
    [_QUESTION, _CALLED, _RESULT],
    [{"role": "system", "content": "Be brief."}, _QUESTION, _SAID, _QUESTION, _CALLED, _RESULT, _RESULT],
]
"""What may stand before the answer."""


class TemplateRenderer:
    """A `Renderer` on a model's tokenizer and chat template. Thread-safe after construction."""

    name = "template"

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        template: ChatTemplate,
        *,
        stop_token_ids: Sequence[int] = (),
        vocab_size: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._template = template
        self.tokenizer_digest = tokenizer.digest
        self.template_digest = hashlib.sha256(template.source.encode()).hexdigest()
        self._hidden_ids = frozenset(i for i, t in tokenizer.added.items() if t.is_special and t.content not in _MARKS)
        added_texts = {i: token.content for i, token in tokenizer.added.items()}
        self._table = ByteTable(tokenizer.backend, hidden_ids=self._hidden_ids, added=added_texts)
        self._turn_end = self._find_turn_end({text: i for i, text in added_texts.items()})
        self.end_of_turn_id = self._turn_end[1] if self._turn_end else None
        self._is_tail_local, self._are_tools_in_tail = self._look_at_tails()
        ends = [self.end_of_turn_id] if self.end_of_turn_id is not None else []
        self.stop_token_ids = tuple(dict.fromkeys([*ends, *stop_token_ids]))
        self._call_format: CallFormat = read_xml_calls if "<function=" in template.source else read_json_calls

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
        attempts: list[Callable[[], list[dict[str, Any]]]] = [
            lambda: prepared,
            lambda: without_system_turns(prepared),
            lambda: _with_object_arguments(without_system_turns(prepared)),
        ]
        reason = ""
        for attempt in attempts:
            try:
                return self._template.render(attempt(), tools, template_kwargs)
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
        if self._turn_end is None or not has_answer_before(messages, new_from):
            return None
        if self._is_tail_local:  # the cost of what is new, not of the whole conversation
            answer, new = messages[new_from - 1], messages[new_from:]
            tail = self._tail([_QUESTION, answer, *new], 2, tools if self._are_tools_in_tail else (), template_kwargs)
        else:
            tail = self._tail(messages, new_from, tools, template_kwargs)
        if tail is None:
            return None
        end_text, end_id = self._turn_end
        # With the end in front, as it stands in the prompt: some tokenizers put a space before a text that begins without it.
        ids = self.encode(end_text + tail)
        if end_id not in ids[:2]:
            return None
        closing = [] if output_ids and output_ids[-1] == end_id else [end_id]
        return [*prompt_ids, *output_ids, *closing, *ids[ids.index(end_id) + 1 :]]

    def _tail(
        self,
        messages: Sequence[Mapping[str, Any]],
        new_from: int,
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> str | None:
        """What the template prints behind the end of the turn before `messages[new_from]`; None where that can't be told."""
        assert self._turn_end is not None
        prepared = for_template(messages)
        prepared[new_from - 1] = _stand_in(prepared[new_from - 1])
        try:
            text = self.render_text(prepared, tools, template_kwargs)
        except ProxyError:
            return None
        end_text = self._turn_end[0]
        answer = text.rfind(_STAND_IN)
        end = text.find(end_text, answer) if answer >= 0 else -1
        return text[end + len(end_text) :] if end >= 0 else None

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
        if self.tokenizer.is_byte_level:
            return ByteDetokenizer(self._table)
        return WindowDetokenizer(self._decode_visible)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self.tokenizer.decode(ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to an output's visible text."""
        return self._table[token_id] if self.tokenizer.is_byte_level else self._decode_visible([token_id]).encode()

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, nothing added."""
        return self.tokenizer.encode(text)

    def _decode_visible(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i not in self._hidden_ids])

    def _look_at_tails(self) -> tuple[bool, bool]:
        """(whether what stands before an answer changes nothing of what is printed behind it, whether the tools change that)."""
        if self._turn_end is None:
            return False, True
        is_local, are_tools_in_tail = True, False
        for answer, new in _TAIL_PROBES:
            alone = self._tail([_QUESTION, answer, *new], 2, _PROBE_TOOLS, {})
            for before in _TAIL_CONTEXTS:
                whole = self._tail([*before, answer, *new], len(before) + 1, _PROBE_TOOLS, {})
                is_local = is_local and alone is not None and whole == alone
            are_tools_in_tail = are_tools_in_tail or self._tail([_QUESTION, answer, *new], 2, (), {}) != alone
        return is_local, are_tools_in_tail

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


def has_answer_before(messages: Sequence[Mapping[str, Any]], new_from: int) -> bool:
    """Whether something is new at `new_from` and an answer stands right before it: else there is nothing to extend."""
    return 0 < new_from < len(messages) and messages[new_from - 1].get("role") == "assistant"


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
