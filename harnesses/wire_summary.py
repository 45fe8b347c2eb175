"""What a harness sends, as field names and types: never a value, never a prompt. Pure.

The summary of each pinned version stands in `wires/<harness>.json`; a newer version that speaks otherwise shows in its diff.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import orjson

# Where the vendors' APIs put a tool's schema, which is the harness' own text: only the names of its arguments are kept.
_SCHEMAS = ("parameters", "input_schema", "parametersJsonSchema", "inputSchema")
# The lists that hold the conversation.
_CONVERSATIONS = ("messages", "input", "contents")
_TYPES = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as it arrived, and the body that answered it; `path` has its query, `headers` are names only."""

    method: str
    path: str
    headers: frozenset[str]
    body: bytes
    answer: bytes


def summarise(exchanges: Iterable[Seen], *, secret: str, model: str) -> dict[str, Any]:
    """The summary of one session, fit for a file: endpoints, header names, body paths with types, tools, conversations, events.

    A path names a list's items by their `type` or `role`: `messages[user].content[text].text`.
    """
    seen = list(exchanges)
    paths: dict[str, set[str]] = {}
    tools: dict[str, str] = {}
    bodies = [_parsed(item.body) for item in seen]
    for body in bodies:
        _walk(body, "", paths, tools)
    return {
        "endpoints": sorted({_endpoint(item, secret, model) for item in seen}),
        "headers": sorted(frozenset[str]().union(*(item.headers for item in seen))),
        "body": {path.lstrip("."): "|".join(sorted(types)) for path, types in sorted(paths.items())},
        "tools": dict(sorted(tools.items())),
        "calls": len(seen),
        "last_conversation": _conversation(bodies[-1]) if bodies else [],
        "events": _distinct(events_of(item.answer) for item in seen),
    }


def recorded(harness: str) -> dict[str, Any] | None:
    """The summary of the pinned version that is packaged with us, or None."""
    entry = resources.files("harnesses").joinpath("wires", f"{harness}.json")
    if not entry.is_file():
        return None
    tree: dict[str, Any] = orjson.loads(entry.read_bytes())
    return tree


def differences(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """What changed between two summaries, one line each: `+ body.x: string`, `- tools.Glob`."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        place = f"{path}.{key}" if path else key
        if key not in new:
            lines.append(f"- {place}: {_short(old[key])}")
        elif key not in old:
            lines.append(f"+ {place}: {_short(new[key])}")
        elif isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            lines += differences(old[key], new[key], place)
        elif old[key] != new[key]:
            lines.append(f"~ {place}: {_short(old[key])} -> {_short(new[key])}")
    return lines


def events_of(answer: bytes) -> list[str]:
    """The kinds of events of a streamed answer in order, repeats in a row once; of a whole answer, its fields."""
    if not answer.startswith((b"event:", b"data:", b":")):
        tree = _parsed(answer)
        return ["whole: " + ", ".join(sorted(tree))] if isinstance(tree, Mapping) else []
    kinds: list[str] = []
    for line in answer.decode("utf-8", "replace").splitlines():
        if not line.startswith("data:"):
            continue
        kind = _kind(line.removeprefix("data:").strip())
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    return kinds


def _kind(data: str) -> str:
    if data == "[DONE]":
        return data
    event = _parsed(data.encode())
    if not isinstance(event, Mapping):
        return "?"
    if isinstance(event.get("type"), str):
        return str(event["type"])
    for name in ("choices", "candidates"):
        if isinstance(event.get(name), list):
            return f"{name}: {_contents(event[name])}"
    return ", ".join(sorted(event))


def _contents(choices: list[Any]) -> str:
    """What a chunk of Chat Completions or Google carries."""
    found: set[str] = set()
    for choice in choices:
        delta = choice.get("delta") or {}
        found |= {name for name, value in delta.items() if value is not None}
        found |= {name for part in (choice.get("content") or {}).get("parts") or [] for name in part}
        found |= {name for name in ("finish_reason", "finishReason") if choice.get(name)}
    return ", ".join(sorted(found))


def _walk(value: Any, path: str, paths: dict[str, set[str]], tools: dict[str, str]) -> None:
    if isinstance(value, Mapping):
        schema = next((name for name in _SCHEMAS if isinstance(value.get(name), Mapping)), None)
        if schema is not None and isinstance(value.get("name"), str):
            tools[value["name"]] = ", ".join(sorted(value[schema].get("properties") or {}))
        if not value:
            paths.setdefault(path, set()).add("object")
        for key, item in value.items():
            if key == schema:
                paths.setdefault(f"{path}.{key}", set()).add("schema")
            else:
                _walk(item, f"{path}.{key}", paths, tools)
    elif isinstance(value, list):
        if not value:
            paths.setdefault(path, set()).add("list")
        for item in value:
            _walk(item, f"{path}[{_tag(item)}]", paths, tools)
    else:
        paths.setdefault(path, set()).add(_TYPES.get(type(value), "?"))


def _tag(item: Any) -> str:
    if isinstance(item, Mapping):
        for name in ("type", "role"):
            if isinstance(item.get(name), str):
                return str(item[name])
    return ""


def _conversation(body: Any) -> list[str]:
    """The kinds of messages and their parts, in order."""
    if not isinstance(body, Mapping):
        return []
    items: list[Any] = next((body[name] for name in _CONVERSATIONS if isinstance(body.get(name), list)), [])
    return [_item(item) for item in items if isinstance(item, Mapping)]


def _item(item: Mapping[str, Any]) -> str:
    name = str(item.get("role") or item.get("type") or "?")
    parts = item.get("parts") if isinstance(item.get("parts"), list) else item.get("content")
    inside = (
        [_tag(part) or "+".join(sorted(part)) for part in parts if isinstance(part, Mapping)]
        if isinstance(parts, list)
        else []
    )
    if item.get("tool_calls"):
        inside += ["tool_call"] * len(item["tool_calls"])
    return f"{name}({', '.join(inside)})" if inside else name


def _endpoint(item: Seen, secret: str, model: str) -> str:
    parts = urlsplit(item.path)
    path = parts.path.replace(f"/s/{secret}", "").replace(model, "MODEL")
    query = "?" + parts.query if parts.query else ""
    return f"{item.method} {path}{query.replace(secret, 'SECRET')}"


def _distinct(sequences: Iterable[list[str]]) -> list[list[str]]:
    kept: list[list[str]] = []
    for sequence in sequences:
        if sequence not in kept:
            kept.append(sequence)
    return kept


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _short(value: Any) -> str:
    return orjson.dumps(value).decode()[:200]
