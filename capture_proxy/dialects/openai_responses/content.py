"""Content parts of the Responses API as text and image parts."""

from __future__ import annotations

from typing import Any

from capture_proxy.dialects.body import Notes, dump_arguments
from capture_proxy.dialects.content import (
    base64_size_bytes,
    image_part,
    join_parts,
    placeholder,
    read_parts,
    text_part,
    unsupported,
)
from capture_proxy.reply import Json


def read_content(content: Json, where: str, notes: Notes) -> str | list[dict[str, Json]]:
    """The content of a message: a string or parts. Raises ProxyError(bad_request)."""
    return read_parts(content, where, lambda part: _read_part(part, notes))


def read_output(output: Json, notes: Notes) -> str | list[dict[str, Json]]:
    """The output of a tool: text, parts, nothing, or (of some built-in tools) an object, which becomes its JSON text."""
    if isinstance(output, list) and all(isinstance(part, dict) and _is_content(part) for part in output):
        return join_parts([_read_part(part, notes) for part in output])
    return output if isinstance(output, str) else "" if output is None else dump_arguments(output)


def _is_content(part: dict[str, Any]) -> bool:
    return isinstance(part.get("type"), str)


def _read_part(part: Json, notes: Notes) -> dict[str, Json]:
    if isinstance(part, str):
        return text_part(part)
    kind = part.get("type") if isinstance(part, dict) else None
    match kind:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return text_part(str(part.get("text") or ""))
        case "refusal":
            return text_part(str(part.get("refusal") or ""))
        case "input_image" | "computer_screenshot":
            return _read_image(part, notes)
        case "input_file":
            notes.add("replaced: input_file")
            data = str(part.get("file_data") or "")
            size = f"{base64_size_bytes(data.rpartition(',')[2])} bytes" if data else ""
            return placeholder(
                "file", *(str(part.get(name) or "") for name in ("filename", "file_url", "file_id")), size
            )
        case "input_audio":
            audio = part.get("input_audio")
            audio = audio if isinstance(audio, dict) else {}
            notes.add("replaced: input_audio")
            size = f"{base64_size_bytes(str(audio.get('data') or ''))} bytes"
            return placeholder("audio", str(audio.get("format") or ""), size)
        case _:
            notes.add(f"replaced: {str(kind)[:80]}")
            return unsupported(str(kind)[:80])


def _read_image(part: dict[str, Any], notes: Notes) -> dict[str, Json]:
    sent = part.get("image_url")
    url = sent.get("url") if isinstance(sent, dict) else sent
    if isinstance(url, str) and url:
        return image_part(url)
    notes.add("replaced: image by file id")
    return placeholder("image", str(part.get("file_id") or ""))
