"""Reads the messages of a Chat Completions request."""

from __future__ import annotations

from typing import Any

from capture_proxy.dialects.body import Notes, dump_arguments
from capture_proxy.dialects.content import (
    base64_size_bytes,
    image_part,
    join_parts,
    placeholder,
    text_part,
    unsupported,
)
from capture_proxy.dialects.pairing import pair_tools
from capture_proxy.reply import Json, ProxyError


def read_messages(messages: list[Json], notes: Notes) -> list[dict[str, Json]]:
    """Normalised messages with calls and results paired. Raises ProxyError(bad_request) naming the message."""
    if not messages:
        raise ProxyError("bad_request", "messages: at least one message is required", param="messages")
    read: list[dict[str, Json]] = []
    for position, message in enumerate(messages):
        where = f"messages.{position}"
        if not isinstance(message, dict):
            raise ProxyError("bad_request", f"{where}: must be an object", param=where)
        normal = _read_message(message, where, notes)
        if normal is not None:
            read.append(normal)
    return pair_tools(read, notes)


def _read_message(message: dict[str, Any], where: str, notes: Notes) -> dict[str, Json] | None:
    content = _read_content(message.get("content"), where, notes)
    match message.get("role"):
        case "system" | "developer":
            return {"role": "system", "content": content} if content else None
        case "user":
            return {"role": "user", "content": content}
        case "assistant":
            return _read_assistant(message, content)
        case "tool" | "function" as role:
            sent_id = message.get("tool_call_id") if role == "tool" else None
            return {"role": "tool", "tool_call_id": sent_id if isinstance(sent_id, str) else "", "content": content}
        case role:
            raise ProxyError(
                "bad_request",
                f"{where}.role: {role!r} is not one of system, developer, user, assistant, tool",
                param=f"{where}.role",
            )


def _read_assistant(message: dict[str, Any], content: Json) -> dict[str, Json]:
    """An answer in history: null, "", [] and missing content are one and the same."""
    normal: dict[str, Json] = {"role": "assistant", "content": content}
    reasoning = message.get("reasoning_content") or message.get("reasoning")  # some clients send both, equal
    if isinstance(reasoning, str) and reasoning:
        normal["reasoning_content"] = reasoning
    sent = message.get("tool_calls") or []
    if isinstance(message.get("function_call"), dict):  # the form before tools
        sent = [{"function": message["function_call"]}]
    calls = [_read_call(call) for call in sent if isinstance(call, dict)] if isinstance(sent, list) else []
    if calls:
        normal["tool_calls"] = calls
    return normal


def _read_call(call: dict[str, Any]) -> dict[str, Json]:
    function = call.get("function") if isinstance(call.get("function"), dict) else {}
    assert isinstance(function, dict)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = dump_arguments({} if arguments is None else arguments)
    sent_id = call.get("id")
    return {
        "id": sent_id if isinstance(sent_id, str) else "",
        "type": "function",
        "function": {"name": str(function.get("name") or ""), "arguments": arguments or "{}"},
    }


def _read_content(content: Json, where: str, notes: Notes) -> str | list[dict[str, Json]]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ProxyError(
            "bad_request", f"{where}.content: must be a string or a list of parts", param=f"{where}.content"
        )
    return join_parts([_read_part(part, notes) for part in content])


def _read_part(part: Json, notes: Notes) -> dict[str, Json]:
    if isinstance(part, str):
        return text_part(part)
    kind = part.get("type") if isinstance(part, dict) else None
    match kind:
        case "text" | "input_text" | "output_text":
            return text_part(str(part.get("text") or ""))
        case "refusal":
            return text_part(str(part.get("refusal") or ""))
        case "image_url":
            source = part.get("image_url")
            url = source.get("url") if isinstance(source, dict) else source
            return image_part(str(url or ""))
        case "input_audio":
            audio = part.get("input_audio") or {}
            notes.add("replaced: input_audio")
            return placeholder(
                "audio", str(audio.get("format") or ""), f"{base64_size_bytes(str(audio.get('data') or ''))} bytes"
            )
        case "file":
            file = part.get("file") or {}
            notes.add("replaced: file")
            return placeholder("file", str(file.get("filename") or file.get("file_id") or ""))
        case _:
            notes.add(f"replaced: {kind}")
            return unsupported(str(kind))
