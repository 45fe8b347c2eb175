"""Tool calls in sampled text: all of them well-formed, or none. What is malformed is delivered as the text it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call at [start, end) of the held text, marks included; `arguments` is a JSON object's text."""

    name: str
    arguments: str
    start: int
    end: int


CallFormat: TypeAlias = Callable[[str, Sequence[Mapping[str, Any]]], tuple[list[FoundCall], str] | None]
"""(held text, tools) → (calls, the text between and after them), or None where anything is malformed or cut."""


def last_opening(held: str) -> int:
    """Where the last call of the held text begins, if that call isn't closed; -1 when it is."""
    opening = held.rfind(OPEN)
    return -1 if held.find(CLOSE, opening) >= 0 else opening


def read_json_calls(held: str, tools: Sequence[Mapping[str, Any]]) -> tuple[list[FoundCall], str] | None:
    """The Hermes and Qwen form: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""
    del tools
    return _read_blocks(held, _read_json_body)


def read_xml_calls(held: str, tools: Sequence[Mapping[str, Any]]) -> tuple[list[FoundCall], str] | None:
    """Qwen3-Coder's form: `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`.

    A value is JSON where the tool's schema says it isn't a string, else text without its outer newlines.
    """
    return _read_blocks(held, lambda text, at: _read_xml_body(text, at, tools))


def _read_blocks(
    held: str, read_body: Callable[[str, int], tuple[str, str, int]]
) -> tuple[list[FoundCall], str] | None:
    calls: list[FoundCall] = []
    rest: list[str] = []
    at = 0
    try:
        while (start := held.find(OPEN, at)) >= 0:
            rest.append(held[at:start])
            name, arguments, body_end = read_body(held, _skip_space(held, start + len(OPEN)))
            close = _skip_space(held, body_end)
            if not held.startswith(CLOSE, close):
                return None
            at = close + len(CLOSE)
            calls.append(FoundCall(name, arguments, start, at))
    except (ValueError, TypeError, RecursionError):  # TypeError: nested deeper than orjson writes
        return None
    rest.append(held[at:])
    return (calls, "".join(rest).strip()) if calls else None


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _read_json_body(text: str, at: int) -> tuple[str, str, int]:
    """(name, arguments as sampled, end) of the object at `at`. Raises ValueError."""
    places, end = _read_object(text, at)
    name_at, arguments_at = places.get("name"), places.get("arguments")
    name = text[name_at[0] : name_at[1]] if name_at else ""
    if not name.startswith('"') or len(name) == len('""'):
        raise ValueError("the name is missing")
    arguments = text[arguments_at[0] : arguments_at[1]] if arguments_at else "{}"
    if not arguments.startswith("{"):
        raise ValueError("arguments must be an object")
    name = json.loads(name)
    name.encode()  # an escaped lone surrogate can't travel, and is no tool's name: a ValueError
    return name, arguments, end


def _read_object(text: str, at: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Where each value of the object at `at` stands, and the object's end: what is sampled can be cut out byte for byte."""
    if not text.startswith("{", at):
        raise ValueError("not an object")
    places: dict[str, tuple[int, int]] = {}
    at = _skip_space(text, at + 1)
    if text.startswith("}", at):
        return places, at + 1
    while True:
        if not text.startswith('"', at):
            raise ValueError("a key must be a string")
        key, at = _DECODER.raw_decode(text, at)
        start = _skip_space(text, _expect(text, _skip_space(text, at), ":"))
        _, at = _DECODER.raw_decode(text, start)
        places[key] = (start, at)
        at = _skip_space(text, at)
        if text.startswith("}", at):
            return places, at + 1
        at = _skip_space(text, _expect(text, at, ","))


def _expect(text: str, at: int, char: str) -> int:
    if not text.startswith(char, at):
        raise ValueError(f"{char!r} is missing")
    return at + 1


_FUNCTION = re.compile(r"<function=([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>")
_FUNCTION_CLOSE = re.compile(r"\s*</function>")


def _read_xml_body(text: str, at: int, tools: Sequence[Mapping[str, Any]]) -> tuple[str, str, int]:
    """(name, arguments as JSON, end) of the function at `at`. Raises ValueError."""
    opening = _FUNCTION.match(text, at)
    if opening is None:
        raise ValueError("no function")
    name = opening[1]
    properties = _properties(name, tools)
    arguments: dict[str, Any] = {}
    at = opening.end()
    while (parameter := _PARAMETER.match(text, at)) is not None:
        close = text.find("</parameter>", parameter.end())
        if close < 0:
            raise ValueError("a parameter is cut")
        value = text[parameter.end() : close].removeprefix("\n").removesuffix("\n")
        arguments[parameter[1]] = _typed(value, properties.get(parameter[1]))
        at = close + len("</parameter>")
    closing = _FUNCTION_CLOSE.match(text, at)
    if closing is None:
        raise ValueError("the function is cut")
    return name, orjson.dumps(arguments).decode(), closing.end()


def _properties(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function") or {}
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties")
            return properties if isinstance(properties, dict) else {}
    return {}


def _typed(value: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is None or "string" in kinds:
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
