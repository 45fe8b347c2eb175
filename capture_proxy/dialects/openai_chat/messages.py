"""Reads the messages of a Chat Completions request."""

from __future__ import annotations

from typing import Any

from capture_proxy.dialects.body import Notes, dump_arguments
from capture_proxy.dialects.content import (
    SEPARATOR,
    base64_size_bytes,
    image_part,
    placeholder,
    read_parts,
    text_part,
    unsupported,
)
from capture_proxy.dialects.freeform import INPUT
from capture_proxy.dialects.pairing import pair_tools
from capture_proxy.reply import Json, ProxyError
from capture_proxy.turn_ids import TURN_KEY, completion_of

_MESSAGE_FIELDS = frozenset(
    {
        "role",
        "content",
        "tool_call_id",
        "tool_calls",
        "function_call",
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "refusal",
        "cache_control",
    }
)


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
    for name in message.keys() - _MESSAGE_FIELDS:
        if message[name] not in (None, [], {}, ""):
            notes.add(f"ignored message field: {name[:80]}")
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
    refusal = message.get("refusal")
    if not content and isinstance(refusal, str):
        content = refusal
    normal: dict[str, Json] = {"role": "assistant", "content": content}
    details = _details(message)
    reasoning = message.get("reasoning_content") or message.get("reasoning")  # some clients send both, equal
    if not isinstance(reasoning, str) or not reasoning:
        texts = [detail.get("text") or detail.get("summary") for detail in details]
        reasoning = SEPARATOR.join(text for text in texts if isinstance(text, str) and text)
    if reasoning:
        normal["reasoning_content"] = reasoning
    marks = [completion_of(detail.get(name)) for detail in details for name in ("signature", "data")]
    if turn_id := next(filter(None, marks), None):
        normal[TURN_KEY] = turn_id
    sent = message.get("tool_calls") or []
    if isinstance(message.get("function_call"), dict):  # the form before tools
        sent = [{"function": message["function_call"]}]
    calls = [_read_call(call) for call in sent if isinstance(call, dict)] if isinstance(sent, list) else []
    if calls:
        normal["tool_calls"] = calls
    return normal


def _details(message: dict[str, Any]) -> list[dict[str, Any]]:
    """`reasoning_details`, in which some clients keep reasoning with its marks."""
    sent = message.get("reasoning_details")
    return [detail for detail in sent if isinstance(detail, dict)] if isinstance(sent, list) else []


def _read_call(call: dict[str, Any]) -> dict[str, Json]:
    sent_id = call.get("id")
    function = call.get("function")
    if isinstance(custom := call.get("custom"), dict):  # a freeform tool's
        function = {"name": custom.get("name"), "arguments": {INPUT: str(custom.get("input") or "")}}
    if not isinstance(function, dict):
        function = {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = dump_arguments({} if arguments is None else arguments)
    return {
        "id": sent_id if isinstance(sent_id, str) else "",
        "type": "function",
        "function": {"name": str(function.get("name") or ""), "arguments": arguments or "{}"},
    }


def _read_content(content: Json, where: str, notes: Notes) -> str | list[dict[str, Json]]:
    return read_parts(content, where, lambda part: _read_part(part, notes))


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
            audio = _object(part.get("input_audio"))
            notes.add("replaced: input_audio")
            return placeholder("audio", str(audio.get("format") or ""), _size(audio.get("data")))
        case "file":
            file = _object(part.get("file"))
            notes.add("replaced: file")
            name = str(file.get("filename") or file.get("file_id") or "")[:200]
            return placeholder("file", name, _size(str(file.get("file_data") or "").rpartition(",")[2]))
        case _:
            notes.add(f"replaced: {str(kind)[:80]}")
            return unsupported(str(kind)[:80])


def _object(value: Json) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _size(data: Json) -> str:
    return f"{base64_size_bytes(data)} bytes" if isinstance(data, str) and data else ""
