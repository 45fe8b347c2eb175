"""Content blocks of the Messages API as text and image parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture_proxy.dialects.body import Notes, dump_arguments
from capture_proxy.dialects.content import (
    ERROR_MARK,
    SEPARATOR,
    base64_size_bytes,
    image_part,
    join_parts,
    placeholder,
    prepend_text,
    text_part,
    unsupported,
)
from capture_proxy.reply import Json


def read_tool_result(block: dict[str, Any], deferred: Mapping[str, dict[str, Json]], notes: Notes) -> dict[str, Json]:
    """A tool result as a tool message; missing, null and empty content are the empty string."""
    sent = block.get("content")
    if isinstance(sent, list):
        parts = [_read_result_block(part, deferred, notes) for part in sent]
        content = join_parts(parts)
    else:
        content = sent if isinstance(sent, str) else ""
    if block.get("is_error") is True:
        content = prepend_text(ERROR_MARK, content)
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id") or ""), "content": content}


def _read_result_block(block: Json, deferred: Mapping[str, dict[str, Json]], notes: Notes) -> dict[str, Json]:
    if isinstance(block, dict) and block.get("type") == "tool_reference":
        name = str(block.get("tool_name") or "")
        function = deferred.get(name, {"name": name})
        return text_part(dump_arguments({"type": "function", "function": function}))
    return read_block(block, notes)


def read_block(block: Json, notes: Notes) -> dict[str, Json]:
    """Any block as a text or image part; what no model of ours can read becomes a fixed placeholder, noted."""
    if isinstance(block, str):
        return text_part(block)
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            return text_part(str(block.get("text") or ""))
        case "image":
            return _read_image(_object(block.get("source")), notes)
        case "document":
            return _read_document(block, notes)
        case "search_result":
            texts = [str(block.get(name) or "") for name in ("title", "source")]
            sent = block.get("content")
            texts += [str(_object(part).get("text") or "") for part in (sent if isinstance(sent, list) else [])]
            return text_part(SEPARATOR.join(text for text in texts if text))
        case _:
            notes.add(f"replaced: {str(kind)[:80]}")
            return unsupported(str(kind)[:80])


def _object(value: Json) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_image(source: dict[str, Any], notes: Notes) -> dict[str, Json]:
    match source.get("type"):
        case "base64":
            return image_part(f"data:{source.get('media_type') or 'image/png'};base64,{source.get('data') or ''}")
        case "url":
            return image_part(str(source.get("url") or ""))
        case kind:
            notes.add(f"replaced: image.{str(kind)[:80]}")
            return placeholder("image", str(source.get("file_id") or kind)[:200])


def _read_document(block: dict[str, Any], notes: Notes) -> dict[str, Json]:
    """A document's text with its title; binary ones as a placeholder with title, type and size."""
    source = _object(block.get("source"))
    title = str(block.get("title") or "")
    if source.get("type") == "text":
        return text_part(SEPARATOR.join(text for text in (title, str(source.get("data") or "")) if text))
    if source.get("type") == "content" and isinstance(source.get("content"), str | list):
        sent = source["content"]
        texts = [sent] if isinstance(sent, str) else [read_block(part, notes).get("text", "") for part in sent]
        return text_part(SEPARATOR.join(text for text in (title, *texts) if text))
    notes.add("replaced: document")
    size = (
        f"{base64_size_bytes(str(source['data']))} bytes"
        if source.get("data")
        else str(source.get("url") or source.get("file_id") or "")
    )
    return placeholder("document", title, str(source.get("media_type") or ""), size)
