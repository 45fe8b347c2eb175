"""Checked access to the vendor's objects: both spellings of every field, lists that may be one object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from capture_proxy.dialects.body import Notes
from capture_proxy.reply import Json, ProxyError

_SNAKE = re.compile(r"_([a-z0-9])")


def bad(where: str, what: str) -> ProxyError:
    """The error for a field that can't be read."""
    return ProxyError("bad_request", f"{where}: {what}", param=where)


def camel(value: Mapping[str, Json]) -> dict[str, Json]:
    """The object's own field names as `lowerCamelCase`: the vendor takes `snake_case` as well. What is inside stays as it is."""
    if not any("_" in name for name in value):
        return dict(value)
    return {_SNAKE.sub(lambda found: found[1].upper(), name): item for name, item in value.items()} | {
        name: item for name, item in value.items() if "_" not in name
    }


def want_object(value: Json, where: str) -> dict[str, Json]:
    """An object field in camel case; null counts as empty. Raises ProxyError(bad_request) naming the field."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad(where, "must be an object")
    return camel(value)


def want_objects(value: Json, where: str) -> list[dict[str, Json]]:
    """A list of objects, or the one object that some clients send in its place. Raises ProxyError(bad_request)."""
    items: list[Json] = value if isinstance(value, list) else [] if value is None else [value]
    return [want_object(item, f"{where}[{position}]") for position, item in enumerate(items)]


def ignore_others(value: Mapping[str, Any], known: tuple[str, ...], where: str, notes: Notes) -> None:
    """Remarks on every set field that isn't read, with its place."""
    for name in value.keys() - set(known):
        if value[name] is not None:
            notes.add(f"ignored field: {where}.{name[:80]}")
