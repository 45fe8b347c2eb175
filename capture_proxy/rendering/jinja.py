"""Chat templates, run as transformers runs them, without importing transformers (which brings torch: seconds and 600 MB).

What templates are written for: an immutable sandbox, `trim_blocks` and `lstrip_blocks`, loop controls, a
`tojson` that doesn't escape HTML, `raise_exception`, `strftime_now`, and a `generation` block that only marks its content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplate:
    """A compiled chat template. `special_tokens` (bos_token, eos_token …) are variables that templates print."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._template = _environment().from_string(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        switches: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text; switches can't replace what the conversation sets. Raises whatever the template raises."""
        values = {**switches, **self._special_tokens}
        values |= {
            "messages": list(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._template.render(values)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model samples; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 looks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's content."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time, as transformers gives it
