"""Content parts of a generateContent request as text and image parts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import orjson

from capture_proxy.dialects.body import REPLACEMENT, Notes, dump_arguments
from capture_proxy.dialects.content import (
    ERROR_MARK,
    SEPARATOR,
    base64_size_bytes,
    image_part,
    join_parts,
    merge_content,
    placeholder,
    prepend_text,
    text_part,
    unsupported,
)
from capture_proxy.dialects.google.fields import bad, camel, ignore_others, want_object, want_objects
from capture_proxy.reply import Json

_STANDARD: Final = str.maketrans("-_", "+/")

DATA_FIELDS: Final = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
)
"""The fields that say what a part is; `thought` and `thoughtSignature` say more about it."""

_ABOUT: Final = ("thought", "thoughtSignature")


def read_parts(content: Mapping[str, Json], where: str) -> list[dict[str, Json]]:
    """The parts of a content in camel case; one part, or a string, may stand in place of the list."""
    sent = content.get("parts")
    items: list[Json] = sent if isinstance(sent, list) else [] if sent is None else [sent]
    parts: list[dict[str, Json]] = []
    for position, item in enumerate(items):
        if item is None:
            continue
        if not isinstance(item, dict | str):
            raise bad(f"{where}.parts[{position}]", "must be an object")
        parts.append({"text": item} if isinstance(item, str) else camel(item))
    return parts


def read_part(part: Mapping[str, Json], where: str, notes: Notes) -> dict[str, Json] | None:
    """A part that isn't a call or a result; None for one that says nothing (a mere signature)."""
    kind = next((name for name in DATA_FIELDS if part.get(name) is not None), None)
    if kind is None:
        unknown = sorted(name for name, value in part.items() if name not in _ABOUT and value is not None)
        if not unknown:
            return None
        notes.add(f"replaced: {unknown[0][:80]}")
        return unsupported(unknown[0][:80])
    ignore_others(part, (kind, *_ABOUT), "parts", notes)
    value = part[kind]
    match kind:
        case "text":
            if not isinstance(value, str):
                raise bad(f"{where}.text", "must be a string")
            return text_part(value)
        case "inlineData":
            return _read_blob(want_object(value, f"{where}.inlineData"), notes)
        case "fileData":
            file = want_object(value, f"{where}.fileData")
            notes.add("replaced: fileData")
            facts = (str(file.get(name) or "") for name in ("displayName", "mimeType", "fileUri"))
            return placeholder("file", *facts)
        case "executableCode":
            code = want_object(value, f"{where}.executableCode")
            notes.add("replaced: executableCode")
            return text_part(f"```{str(code.get('language') or '').lower()}\n{code.get('code') or ''}\n```")
        case "codeExecutionResult":
            result = want_object(value, f"{where}.codeExecutionResult")
            notes.add("replaced: codeExecutionResult")
            return text_part(SEPARATOR.join(str(result[name]) for name in ("outcome", "output") if result.get(name)))
        case _:
            notes.add(f"replaced: {kind}")
            return unsupported(kind)


def standard_base64(data: str) -> str:
    """Base64 in the alphabet that data URLs use: one SDK sends the one that is safe in URLs."""
    return data.translate(_STANDARD)


def _read_blob(blob: Mapping[str, Json], notes: Notes) -> dict[str, Json]:
    """Inline data: images as images, text as text, everything else as its type and size."""
    kind = str(blob.get("mimeType") or "")
    data = standard_base64(str(blob.get("data") or ""))
    name = str(blob.get("displayName") or "")
    if kind.startswith("image/"):
        return image_part(f"data:{kind};base64,{data}")
    if kind.startswith("text/"):
        try:
            text = base64.b64decode(data, validate=True).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            text = REPLACEMENT
            notes.add("replaced: inlineData that isn't base64")
        return text_part(SEPARATOR.join(line for line in (name, text) if line))
    notes.add(f"replaced: inlineData {kind[:80]}")
    return placeholder(kind.partition("/")[0] or "data", name, kind, f"{base64_size_bytes(data)} bytes")


def read_arguments(args: Json) -> str:
    """A call's arguments as JSON text; missing ones are an empty object."""
    if isinstance(args, str):
        return args or "{}"
    return dump_arguments({} if args is None else args)


def read_result(result: Mapping[str, Json], where: str, notes: Notes) -> str | list[dict[str, Json]]:
    """The content of a function's response: `output` or `error` where there is nothing else, as the vendor reads them, else all of it.

    One SDK wraps every result as `name` and `content`: there it is the content.
    """
    ignore_others(result, ("id", "name", "response", "parts"), "functionResponse", notes)
    response = result.get("response")
    content: str | list[dict[str, Json]]
    if isinstance(response, dict) and response.keys() == {"output"}:
        content = _text_of(response["output"])
    elif isinstance(response, dict) and response.keys() == {"error"}:
        content = prepend_text(ERROR_MARK, _text_of(response["error"]))
    elif (
        isinstance(response, dict) and response.keys() == {"name", "content"} and response["name"] == result.get("name")
    ):
        content = _text_of(response["content"])
    else:
        content = "" if response is None or response == {} else _text_of(response)
    for position, part in enumerate(want_objects(result.get("parts"), f"{where}.parts")):
        read = read_part(part, f"{where}.parts[{position}]", notes)
        if read is not None:
            content = merge_content(content, join_parts([read]))
    return content


def _text_of(value: Json) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        return dump_arguments(value)
