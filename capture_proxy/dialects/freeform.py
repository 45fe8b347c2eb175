"""Freeform tools (`custom` in OpenAI's APIs): their input is plain text, which a model that calls functions gives as one string."""

from __future__ import annotations

from typing import Any

import orjson

from capture_proxy.dialects.body import Notes
from capture_proxy.reply import Json

INPUT = "input"
"""The one parameter of the function that stands for a freeform tool."""


def freeform_function(name: str, description: Json, wanted: Json, notes: Notes) -> dict[str, Json]:
    """The function for a tool of that name, whose `format` is `wanted`."""
    text = "\n\n".join(part for part in (description, _grammar(wanted, notes)) if isinstance(part, str) and part)
    parameters: dict[str, Json] = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The whole input of the tool, as plain text."}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"name": name, **({"description": text} if text else {}), "parameters": parameters}


def _grammar(wanted: Json, notes: Notes) -> str:
    """The grammar of a freeform tool as words to the model: sampling isn't bound to it."""
    found: Any = wanted
    if isinstance(wanted, dict) and isinstance(wanted.get("grammar"), dict):  # as Chat nests it
        found = {"type": wanted.get("type"), **wanted["grammar"]}
    if not isinstance(found, dict) or found.get("type") != "grammar":
        return ""
    notes.add("carried as text: grammar of a custom tool")
    return f"The input must match this {found.get('syntax') or ''} grammar:\n{found.get('definition') or ''}"


def freeform_input(arguments: str) -> str:
    """The raw text that a sampled call gives a freeform tool: the one string in its arguments, else the arguments as they stand."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if isinstance(value.get(INPUT), str):
            return str(value[INPUT])
        if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
            return only
    return arguments
