"""Reads the system prompt and the messages of a Messages request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture_proxy.dialects.anthropic.blocks import read_block, read_tool_result
from capture_proxy.dialects.body import Notes, dump_arguments
from capture_proxy.dialects.content import SEPARATOR, join_parts, text_part, unsupported
from capture_proxy.dialects.pairing import pair_tools
from capture_proxy.reply import Json, ProxyError
from capture_proxy.turn_ids import TURN_KEY, completion_of

_BILLING_HEADER = "x-anthropic-billing-header:"
"""A client's first system block that is meant for the vendor's accounting, not for the model; it differs per conversation."""

_SYSTEM_SEPARATOR = "\n\n"


def read_system(system: Json, notes: Notes) -> list[dict[str, Json]]:
    """The top-level system prompt as no or one message; cache marks and block borders leave no trace in it."""
    if system is None or isinstance(system, str):
        return [{"role": "system", "content": system}] if system else []
    if not isinstance(system, list):
        raise ProxyError("bad_request", "system: must be a string or a list of text blocks", param="system")
    texts: list[str] = []
    for block in system:
        text = block.get("text") if isinstance(block, dict) else block
        if not isinstance(text, str) or not text:
            continue
        if text.startswith(_BILLING_HEADER):
            notes.add("dropped: billing header in the system prompt")
            continue
        texts.append(text)
    return [{"role": "system", "content": _SYSTEM_SEPARATOR.join(texts)}] if texts else []


def read_messages(messages: list[Json], deferred: Mapping[str, dict[str, Json]], notes: Notes) -> list[dict[str, Json]]:
    """Normalised messages with calls and results paired. Raises ProxyError(bad_request) naming the message."""
    if not messages:
        raise ProxyError("bad_request", "messages: at least one message is required", param="messages")
    read: list[dict[str, Json]] = []
    for position, message in enumerate(messages):
        where = f"messages.{position}"
        if not isinstance(message, dict):
            raise ProxyError("bad_request", f"{where}: must be an object", param=where)
        blocks = _blocks(message.get("content"), where)
        match message.get("role"):
            case "user":
                read += _read_user(blocks, deferred, notes)
            case "assistant":
                read.append(_read_assistant(blocks, notes))
            case "system" | "developer":
                content = join_parts([read_block(block, notes) for block in blocks])
                for name in message.keys() - {"role", "content", "cache_control"}:
                    notes.add(f"ignored message field: {name[:80]}")
                if content:  # some carry only controls
                    read.append({"role": "system", "content": content})
            case role:
                raise ProxyError(
                    "bad_request",
                    f"{where}.role: {role!r} is not one of user, assistant, system",
                    param=f"{where}.role",
                )
    return pair_tools(read, notes)


def _blocks(content: Json, where: str) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [text_part(content)] if content else []
    if not isinstance(content, list):
        raise ProxyError(
            "bad_request", f"{where}.content: must be a string or a list of blocks", param=f"{where}.content"
        )
    return [block if isinstance(block, dict) else text_part(str(block)) for block in content]


def _read_user(
    blocks: list[dict[str, Any]], deferred: Mapping[str, dict[str, Json]], notes: Notes
) -> list[dict[str, Json]]:
    """Tool results first, in arrival order, then one user message with the rest in order."""
    results = [read_tool_result(block, deferred, notes) for block in blocks if block.get("type") == "tool_result"]
    parts = [read_block(block, notes) for block in blocks if block.get("type") != "tool_result"]
    if results and not parts:
        return results
    return [*results, {"role": "user", "content": join_parts(parts)}]


def _read_assistant(blocks: list[dict[str, Any]], notes: Notes) -> dict[str, Json]:
    """One answer in history: thinking to the reasoning channel, tool uses to calls.

    A signature proves nothing here, but one of ours says which call the answer came from.
    """
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Json]] = []
    turn_id: str | None = None
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text") or ""))
            case "thinking":
                thinking.append(str(block.get("thinking") or ""))
                turn_id = turn_id or completion_of(block.get("signature"))
            case "redacted_thinking":  # another model's, or our mark without its text: the turn's own tokens hold that
                notes.add("dropped: redacted_thinking")
                turn_id = turn_id or completion_of(block.get("data"))
            case "tool_use":
                calls.append(_read_call(block))
            case kind:
                notes.add(f"replaced: {str(kind)[:80]}")
                texts.append(unsupported(str(kind)[:80])["text"])
    message: dict[str, Json] = {"role": "assistant", "content": SEPARATOR.join(text for text in texts if text)}
    if any(thinking):
        message["reasoning_content"] = SEPARATOR.join(text for text in thinking if text)
    if calls:
        message["tool_calls"] = calls
    if turn_id is not None:
        message[TURN_KEY] = turn_id
    return message


def _read_call(block: dict[str, Any]) -> dict[str, Json]:
    sent = block.get("input")
    arguments = sent if isinstance(sent, str) else dump_arguments({} if sent is None else sent)
    function = {"name": str(block.get("name") or ""), "arguments": arguments or "{}"}
    return {"id": str(block.get("id") or ""), "type": "function", "function": function}
