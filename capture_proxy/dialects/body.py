"""Reading a request body: JSON as harnesses really send it, and checked access to its fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from capture_proxy.reply import Json, ProxyError

REPLACEMENT = "\ufffd"

MAX_DEPTH = 200
"""Levels of a body; JSON is written to 254 levels, with something around it."""


class Notes:
    """Collects what was ignored, dropped or repaired in one request; each remark once."""

    __slots__ = ("_remarks",)

    def __init__(self) -> None:
        self._remarks: set[str] = set()

    def add(self, remark: str) -> None:
        """Remembers a remark (short, without user content)."""
        self._remarks.add(remark)

    def ignored_fields(self, body: Mapping[str, Json], known: Iterable[str]) -> None:
        """Remarks on every set field of the body that no part of the dialect reads."""
        for name in body.keys() - set(known):
            if body[name] is not None:
                self.add(f"ignored field: {name[:80]}")

    def sorted(self) -> tuple[str, ...]:
        """All remarks in a stable order."""
        return tuple(sorted(self._remarks))


def parse_body(body: bytes, notes: Notes) -> dict[str, Json]:
    """The JSON object of a request body.

    A lone surrogate escape (a client cut a string inside an emoji) becomes U+FFFD and is noted; NUL passes. Raises
    ProxyError(bad_request) for anything that isn't one JSON object.
    """
    try:
        value: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        value = _parse_leniently(body, str(error), notes)
    _check_depth(value)
    if not isinstance(value, dict):
        raise ProxyError("bad_request", f"the request body must be a JSON object, not {_kind(value)}")
    return value


def _parse_leniently(body: bytes, why: str, notes: Notes) -> Json:
    """What the strict parser refuses but is still JSON: lone surrogates and integers beyond 64 bits."""
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ProxyError("bad_request", f"the request body is not valid JSON: {why}") from None
    _check_depth(value)
    return _scrub(value, notes)


def _check_depth(value: Json) -> None:
    """What is nested deeper could be read, but neither scrubbed nor written to a record."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ProxyError("bad_request", f"the request body is nested deeper than {MAX_DEPTH} levels")
        depth += 1
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _scrub(value: Json, notes: Notes) -> Json:
    """Replaces lone surrogates in every string, keys included."""
    if isinstance(value, str):
        if value.isascii():
            return value
        clean = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if _has_surrogate(value) else value
        if clean is not value:
            notes.add("repaired: lone surrogate")
            return "".join(REPLACEMENT if 0xD800 <= ord(char) <= 0xDFFF else char for char in value)
        return clean
    if isinstance(value, list):
        return [_scrub(item, notes) for item in value]
    if isinstance(value, dict):
        return {_scrub(key, notes): _scrub(item, notes) for key, item in value.items()}
    return value


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(char) <= 0xDFFF for char in text)


def dump_arguments(value: Json) -> str:
    """Tool-call arguments as compact JSON text, key order and non-ASCII kept."""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def want_list(body: Mapping[str, Json], name: str) -> list[Json]:
    """A list field; missing or null counts as empty. Raises ProxyError(bad_request) naming the field."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ProxyError("bad_request", f"{name}: must be a list, not {_kind(value)}", param=name)
    return value


def want_number(body: Mapping[str, Json], name: str) -> float | int | None:
    """A number field or None. Raises ProxyError(bad_request) naming the field."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProxyError("bad_request", f"{name}: must be a number, not {_kind(value)}", param=name)
    if not -(2**63) < value < 2**63:  # also NaN and the infinities, which no engine's JSON can hold
        raise ProxyError("bad_request", f"{name}: must be a number of at most 63 bits", param=name)
    return value


def want_count(body: Mapping[str, Json], name: str) -> int | None:
    """A positive whole number or None. Raises ProxyError(bad_request) naming the field."""
    value = want_number(body, name)
    if value is None:
        return None
    if value != int(value) or value < 1:
        raise ProxyError("bad_request", f"{name}: must be a whole number of at least 1, not {value}", param=name)
    return int(value)


def want_strings(value: Json, name: str) -> list[str]:
    """A string or a list of strings as a list without empty ones. Raises ProxyError(bad_request) naming the field."""
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else [] if value is None else [None]
    if not all(isinstance(item, str) for item in items):
        raise ProxyError("bad_request", f"{name}: must be a string or a list of strings", param=name)
    return [item for item in items if item]


def copy_numbers(body: Mapping[str, Json], names: Iterable[str]) -> dict[str, Any]:
    """The number fields among `names` that are set."""
    return {name: value for name in names if (value := want_number(body, name)) is not None}


def _kind(value: Json) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
