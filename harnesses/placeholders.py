"""Which placeholders a definition may use, and whether it uses only these: a mistyped one would reach the harness as it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from harnesses.adapter import DIALECTS, Adapter, Addition, FileTemplate
from harnesses.errors import HarnessError
from harnesses.templates import names

# Options that have their own meaning instead of being a variable of the templates.
NOT_VARIABLES = frozenset({"env", "cwd", "command", "wire", "capture", "mcp_servers"})
_ALWAYS = frozenset({"instruction", "model", "secret", "home", "workdir", "bin", "base_url", "mcp_servers"})
_STDIO = frozenset({"command", "args", "env"})
_HTTP = frozenset({"url", "headers"})


def known_placeholders(adapter: Adapter) -> frozenset[str]:
    """Every name that has a meaning in the templates of this definition."""
    urls = {f"base_url_{dialect}" for dialect in DIALECTS}
    return _ALWAYS | urls | (adapter.options.keys() - NOT_VARIABLES) | adapter.wire_variables


def check_placeholders(adapter: Adapter, where: str) -> None:
    """Refuses a placeholder that nothing fills. The `text` of a file may hold any braces: it may be a program.

    Raises:
        HarnessError: the text starts with the place, and names what was probably meant.
    """
    known = known_placeholders(adapter)
    for place, value, more in _templates(adapter):
        for text in _strings(value):
            if unknown := names(text) - known - more:
                _refuse(f"{where}.{place}", min(unknown), known | more)


def _refuse(place: str, name: str, known: frozenset[str]) -> None:
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {{{near[0]}}}?" if near else f"known are {', '.join(sorted(known))}"
    raise HarnessError(
        f"{place}: nothing fills the placeholder {{{name}}}; {meant} (braces that are meant literally can stand in an "
        "option's default)"
    )


def _templates(adapter: Adapter) -> Iterator[tuple[str, object, frozenset[str]]]:
    """Place, template, and the names that are known there besides the usual ones."""
    none: frozenset[str] = frozenset()
    for index, argument in enumerate(adapter.command):
        yield f"command[{index}]", argument.parts, none
    yield "environment", adapter.environment, none
    yield "stdin", adapter.stdin, none
    yield "skills_dir", adapter.skills_dir, none
    for place, value in _file_templates("files", adapter.files):
        yield place, value, none
    for wire in adapter.wires.values():
        for place, addition in ((wire.dialect, wire.reverse), (f"{wire.dialect}.forward", wire.forward)):
            if addition is not None:
                for inner, value in _of_addition(addition):
                    yield f"wires.{place}.{inner}", value, none
    if adapter.mcp is not None:
        yield "mcp.stdio", adapter.mcp.stdio, _STDIO
        yield "mcp.http", adapter.mcp.http, _HTTP


def _of_addition(addition: Addition) -> Iterator[tuple[str, object]]:
    yield "base_url", addition.base_url
    yield "set", addition.variables
    yield "environment", addition.environment
    yield from _file_templates("files", addition.files)


def _file_templates(place: str, files: tuple[FileTemplate, ...]) -> Iterator[tuple[str, object]]:
    for index, item in enumerate(files):
        yield f"{place}[{index}].path", item.path
        yield f"{place}[{index}].json", item.json
        yield f"{place}[{index}].toml", item.toml


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
