"""Normalised messages as chat templates want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from capture_proxy.dialects.content import SEPARATOR, base64_size_bytes, merge_content


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with text content and tool-call arguments as objects.

    Arguments that aren't a JSON object (a client replays a call that was cut) stay the opaque string they are. Images become a
    fixed text: a text model can't see them, and the text must not change from turn to turn.
    """
    return [_message(message) for message in messages]


def without_system_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates that allow a system message at the head only: later ones as user text, in place, neighbours of one role merged."""
    plain: list[dict[str, Any]] = []
    for position, original in enumerate(messages):
        message = original
        if original["role"] == "system" and position:
            message = {"role": "user", "content": f"<system>\n{original['content']}\n</system>"}
        last = plain[-1] if plain else None
        if last is not None and last["role"] == message["role"] == "user":
            plain[-1] = {"role": "user", "content": merge_content(last["content"], message["content"])}
        else:
            plain.append(dict(message))
    return plain


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    prepared = dict(message)
    content = prepared.get("content")
    prepared["content"] = content if isinstance(content, str) else SEPARATOR.join(_part(part) for part in content or [])
    if calls := prepared.get("tool_calls"):
        prepared["tool_calls"] = [_call(call) for call in calls]
    return prepared


def _part(part: Mapping[str, Any]) -> str:
    if part.get("type") == "image_url":
        return image_placeholder(str((part.get("image_url") or {}).get("url") or ""))
    return str(part.get("text") or "")


def image_placeholder(url: str) -> str:
    """The text that stands for an image: media type and byte size of a data URL, else the address."""
    if not url.startswith("data:"):
        return f"[image: {url}]"
    head, _, data = url[5:].partition(",")
    return f"[image: {head.partition(';')[0]}, {base64_size_bytes(data)} bytes]"


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            parsed = None
        if isinstance(parsed, dict):
            function["arguments"] = parsed
    return {**call, "function": function}
