"""The model formats that the `renderers` library knows by heart, on top of the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capture_proxy.rendering.base import ReplyParser
from capture_proxy.rendering.held import HeldParser
from capture_proxy.rendering.prepare import for_template
from capture_proxy.rendering.template import TemplateRenderer, has_answer_before
from capture_proxy.reply import ProxyError

_GUESSES = (
    ("gpt_oss", "<|channel|>", "gpt-oss"),
    ("glm4_moe", "<arg_key>", "glm-4.5"),
    ("minimax_m2", "<minimax:tool_call>", "minimax-m2"),
    ("kimi_k2", "<|tool_calls_section_begin|>", "kimi-k2"),
    ("llama", "<|start_header_id|>", "llama-3"),
)
"""(config.json's model_type, a piece of the chat template, the library's name) of formats that only the library can parse.

A wrong guess is harmless: it is used only if it renders like the template. Formats of `<think>` and `<tool_call>` aren't guessed:
for them the template does all that the library does, and importing the library costs seconds of CPU.
"""

_MARK_FAMILIES = frozenset({"qwen3", "prime-qwen3", "qwen3.5", "qwen3.6", "qwen3.8"})
"""Formats of `<think>` and `<tool_call>`, whose text can stream; the others are parsed by the library at the end."""

_PROBE_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ls",
            "description": "List.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
_PROBE: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look around."},
    {
        "role": "assistant",
        "content": "Looking.",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "ls", "arguments": '{"path": "/é"}'}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "a.txt\nb.txt"},
    {"role": "assistant", "content": "Two files."},
    {"role": "user", "content": "Thanks!"},
]


def family_of(model_type: str | None, template: str) -> str | None:
    """The library's format for a model, as a guess; None where the template alone is enough."""
    return next((family for kind, piece, family in _GUESSES if kind == model_type and piece in template), None)


class LibraryRenderer:
    """A `Renderer` that renders with the library, and falls back on the template where the library has no answer."""

    def __init__(self, template: TemplateRenderer, family: str) -> None:
        from renderers import config_from_name, create_renderer

        self.name = family
        self._template = template
        self._create = create_renderer
        self._config = config_from_name(family)
        self._renderers: dict[tuple[tuple[str, Any], ...], Any] = {}
        self.tokenizer_digest = template.tokenizer_digest
        self.template_digest = template.template_digest
        stops = self._renderer({}).get_stop_token_ids()
        self.stop_token_ids = tuple(dict.fromkeys([*template.stop_token_ids, *stops]))
        self.end_of_turn_id = template.end_of_turn_id
        self.vocab_size = template.vocab_size

    def agrees_with_template(self) -> bool:
        """Whether a probe conversation comes out as the same ids both ways, with and without tools."""
        try:
            return all(
                self._render(_PROBE[:end], tools, {}) == self._template.render(_PROBE[:end], tools, {})
                for end in (2, 4, len(_PROBE))
                for tools in ((), _PROBE_TOOLS)
            )
        except ProxyError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int]:
        """Prompt ids of a conversation, ready for the assistant's answer."""
        return self._render(messages, tools, template_kwargs)

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
        """The library's bridge, or else the template's extension.

        The bridge refuses nothing but new answers, cut thinking and formats it can't bridge; a new question after thinking is bridged
        (the sampled tokens are kept).
        """
        if not has_answer_before(messages, new_from):
            return None
        bridged = self._renderer(template_kwargs).bridge_to_next_turn(
            list(prompt_ids), list(output_ids), for_template(messages[new_from:]), tools=list(tools) or None
        )
        if bridged is not None:
            ids: list[int] = list(bridged.token_ids)
            if ids[: len(prompt_ids) + len(output_ids)] == [*prompt_ids, *output_ids]:
                return ids
        return self._template.extend(
            prompt_ids, output_ids, messages, new_from=new_from, tools=tools, template_kwargs=template_kwargs
        )

    def parser(
        self,
        prompt_ids: Sequence[int],
        *,
        is_parsing_tools: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
    ) -> ReplyParser:
        """A parser for the output to this prompt; it streams where the format allows it."""
        if self.name in _MARK_FAMILIES or not is_parsing_tools:
            return self._template.parser(prompt_ids, is_parsing_tools=is_parsing_tools, tools=tools, stop=stop)
        parse = self._renderer({}).parse_response
        return HeldParser(
            lambda ids: parse(ids, tools=list(tools) or None, prompt_ids=list(prompt_ids)),
            self._template.detokenizer(),
            stop=stop,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self._template.decode(ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to an output's visible text."""
        return self._template.token_bytes(token_id)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, nothing added."""
        return self._template.encode(text)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int]:
        renderer = self._renderer(template_kwargs)
        try:
            ids: list[int] = renderer.render_ids(
                for_template(messages), tools=list(tools) or None, add_generation_prompt=True
            )
        except Exception:  # noqa: BLE001 - a format of someone else's may refuse a conversation; the template has its own repairs
            return self._template.render(messages, tools, template_kwargs)
        return ids

    def _renderer(self, template_kwargs: Mapping[str, Any]) -> Any:
        """The library's renderer for these switches; those that the format doesn't know are left out, as a template would."""
        known = type(self._config).template_field_names()
        chosen = tuple(
            sorted((key, value) for key, value in template_kwargs.items() if key in known and _is_plain(value))
        )
        found = self._renderers.get(chosen)
        if found is None:
            config = type(self._config)(**dict(chosen), **_KEEP_THINKING)
            found = self._renderers[chosen] = self._create(self._template.tokenizer, config)
        return found


_KEEP_THINKING: dict[str, Any] = {"thinking_retention": "all"}
"""Sampled thinking stays in an extended prompt also when a new question comes: the engine goes on from what it sampled."""


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
