"""Reads the input items of a Responses request."""

from __future__ import annotations

from typing import Any, Final

from capture_proxy.dialects.body import Notes, dump_arguments
from capture_proxy.dialects.content import SEPARATOR
from capture_proxy.dialects.freeform import INPUT
from capture_proxy.dialects.openai_responses.content import read_content, read_output
from capture_proxy.dialects.openai_responses.ids import completion_of_item
from capture_proxy.dialects.openai_responses.tools import ToolBox
from capture_proxy.dialects.openai_responses.turns import Conversation
from capture_proxy.reply import Json, ProxyError
from capture_proxy.turn_ids import completion_of, completion_of_tool_call

_CLIENT_CALLS: Final = {
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "computer_call": "action",
    "tool_search_call": "arguments",
}
"""Calls of built-in tools that clients run, as they stand in a history from elsewhere, and the field with their arguments."""

_CLIENT_OUTPUTS: Final = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "computer_call_output": "output",
    "tool_search_output": "tools",
}

_COMPACTIONS: Final = frozenset({"compaction", "compaction_summary", "context_compaction"})


def read_items(items: list[Json], tools: ToolBox, notes: Notes) -> list[dict[str, Json]]:
    """The items as messages; calls and results aren't paired yet. Raises ProxyError(bad_request) naming the item."""
    conversation = Conversation()
    for position, item in enumerate(items):
        where = f"input.{position}"
        if not isinstance(item, dict):
            raise ProxyError("bad_request", f"{where}: must be an object", param=where)
        _read_item(item, where, conversation, tools, notes)
    return conversation.messages(notes)


def added_tools(items: list[Json]) -> list[tuple[str, list[Json]]]:
    """The tools that stand in the input instead of in `tools`, and where."""
    return [
        (f"input.{position}.tools", item["tools"])
        for position, item in enumerate(items)
        if isinstance(item, dict) and item.get("type") == "additional_tools" and isinstance(item.get("tools"), list)
    ]


def _read_item(item: dict[str, Any], where: str, conversation: Conversation, tools: ToolBox, notes: Notes) -> None:
    kind = _kind(item)
    if kind == "message":
        _read_message(item, where, conversation, notes)
    elif kind == "reasoning":
        _read_reasoning(item, conversation, notes)
    elif kind in {"function_call", "custom_tool_call"} or kind in _CLIENT_CALLS:
        _read_call(kind, item, conversation, tools)
    elif kind in _CLIENT_OUTPUTS:
        sent = item.get(_CLIENT_OUTPUTS[kind])
        content = read_output([sent] if kind == "computer_call_output" else sent, notes)
        conversation.add({"role": "tool", "tool_call_id": _call_id(item), "content": content})
    elif kind == "additional_tools":
        notes.add("moved to the head of the prompt: additional_tools")
    elif kind in _COMPACTIONS:
        notes.add(f"dropped: {kind} of another server")
    elif kind == "item_reference":
        _read_reference(item, where, conversation)
    elif kind == "compaction_trigger":
        raise ProxyError("bad_request", f"{where}: this server doesn't compact: summarise in the client", param=where)
    elif "role" in item and "content" in item:
        notes.add(f"read as a message: {kind[:80]}")
        _read_message(item, where, conversation, notes)
    else:
        notes.add(f"dropped item: {kind[:80]}")


def _kind(item: dict[str, Any]) -> str:
    """An item's type, which messages and references may leave out."""
    kind = item.get("type")
    if isinstance(kind, str) and kind:
        return kind
    return "message" if "role" in item else "item_reference"


def _read_message(item: dict[str, Any], where: str, conversation: Conversation, notes: Notes) -> None:
    content = read_content(item.get("content"), where, notes)
    match item.get("role"):
        case "user":
            conversation.add({"role": "user", "content": content})
        case "system" | "developer":
            if content:
                conversation.add({"role": "system", "content": content})
        case "assistant":
            conversation.say(completion_of_item(item.get("id")), content)
        case role:
            raise ProxyError(
                "bad_request",
                f"{where}.role: {str(role)[:80]!r} is not one of user, assistant, system, developer",
                param=f"{where}.role",
            )


def _read_reasoning(item: dict[str, Any], conversation: Conversation, notes: Notes) -> None:
    sealed = item.get("encrypted_content")
    completion_id = completion_of(sealed) or completion_of_item(item.get("id"))
    text = SEPARATOR.join(filter(None, _texts(item.get("content")) or _texts(item.get("summary"))))
    if sealed and completion_id is None:
        notes.add("dropped: encrypted reasoning of another server")
    if text or completion_id:
        conversation.turn(completion_id).thinking.append(text)


def _texts(parts: Json) -> list[str]:
    if not isinstance(parts, list):
        return [parts] if isinstance(parts, str) else []
    return [str(part.get("text") or "") for part in parts if isinstance(part, dict)]


def _read_call(kind: str, item: dict[str, Any], conversation: Conversation, tools: ToolBox) -> None:
    call_id = _call_id(item)
    if kind == "custom_tool_call":
        sent: Json = {INPUT: str(item.get("input") or "")}
    else:
        sent = item.get(_CLIENT_CALLS.get(kind, "arguments"))
    name = kind.removesuffix("_call") if kind in _CLIENT_CALLS else str(item.get("name") or "")
    arguments = sent if isinstance(sent, str) else dump_arguments({} if sent is None else sent)
    function = {
        "name": tools.visible_name(name, str(item.get("namespace") or "")),
        "arguments": arguments or "{}",
    }
    completion_id = completion_of_tool_call(call_id) or completion_of_item(item.get("id"))
    conversation.turn(completion_id).calls.append({"id": call_id, "type": "function", "function": function})


def _read_reference(item: dict[str, Any], where: str, conversation: Conversation) -> None:
    """An item of ours that the client names instead of sending it: the session's earlier calls have it, or nobody."""
    name = str(item.get("id"))[:80]
    completion_id = completion_of_item(name)
    if completion_id is None:
        raise ProxyError(
            "bad_request",
            f"{where}: no item {name!r} is stored here: send the item itself, with store=false",
            param=where,
            code="item_not_found",
        )
    conversation.turn(completion_id).recalled = name


def _call_id(item: dict[str, Any]) -> str:
    """The id that pairs call and result; the oldest shell items have only their own."""
    for name in ("call_id", "id"):
        if isinstance(item.get(name), str):
            return str(item[name])
    return ""
