"""Tools of a Chat Completions request: functions, freeform (`custom`) tools, and the `functions` of before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture_proxy.dialects.body import Notes, want_list
from capture_proxy.dialects.freeform import freeform_function, freeform_input
from capture_proxy.dialects.tools import settle_choice
from capture_proxy.reply import Json, ProxyError, Reply, ToolCall

LEGACY = "legacy"
"""In a request's echo: it has `functions`, so a single call goes back as `function_call`."""

CUSTOM = "custom"
"""In a request's echo: the names of the freeform tools."""


def read_tools(value: Mapping[str, Json], notes: Notes) -> tuple[list[dict[str, Json]], Json, dict[str, Json]]:
    """(tools as functions, tool choice, echo). Raises ProxyError(bad_request) naming the tool."""
    echo: dict[str, Json] = {}
    sent = want_list(value, "tools")
    choice = value.get("tool_choice")
    if not sent and (functions := want_list(value, "functions")):
        sent = [{"type": "function", "function": function} for function in functions]
        echo[LEGACY] = True
        choice = choice if choice is not None else _legacy_choice(value.get("function_call"))
    if value.get("web_search_options") is not None:
        notes.add("dropped hosted tool: web_search_options")
    tools: list[dict[str, Json]] = []
    custom: list[str] = []
    for position, tool in enumerate(sent):
        where = f"tools.{position}"
        if not isinstance(tool, dict):
            raise ProxyError("bad_request", f"{where}: must be an object", param=where)
        if isinstance(found := tool.get("function"), dict):
            function = _function(found, f"{where}.function", notes)
        elif tool.get("type") == "custom" and isinstance(found := tool.get("custom"), dict):
            name = _name(found, f"{where}.custom")
            function = freeform_function(name, found.get("description"), found.get("format"), notes)
            custom.append(name)
        else:
            notes.add(f"dropped hosted tool: {str(tool.get('type'))[:80]}")
            continue
        tools.append({"type": "function", "function": function})
    if custom:
        echo[CUSTOM] = custom
    return tools, settle_choice(_read_choice(choice, notes), tools, notes), echo


def call_value(call: ToolCall, echo: Mapping[str, Json]) -> dict[str, Json]:
    """A sampled call as it stands in a message; arguments are the sampled JSON text, byte for byte."""
    if call.name in echo.get(CUSTOM, ()):
        return {
            "id": call.id,
            "type": "custom",
            "custom": {"name": call.name, "input": freeform_input(call.arguments)},
        }
    return {"id": call.id, "type": "function", "function": function_value(call)}


def function_value(call: ToolCall) -> dict[str, Json]:
    """Name and arguments of a call."""
    return {"name": call.name, "arguments": call.arguments or "{}"}


def is_legacy(reply: Reply) -> bool:
    """Whether the reply's call goes back as `function_call`, which has room for one."""
    return LEGACY in reply.echo and len(reply.tool_calls) == 1


def _function(function: dict[str, Any], where: str, notes: Notes) -> dict[str, Json]:
    """A function, its schema untouched: it is data for the prompt."""
    _name(function, where)
    if function.get("strict"):
        notes.add("not enforced: strict arguments of a tool")
    return {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}


def _name(tool: dict[str, Any], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ProxyError("bad_request", f"{where}.name: missing", param=f"{where}.name")
    return name


def _legacy_choice(choice: Json) -> Json:
    return {"type": "function", "function": choice} if isinstance(choice, dict) else choice


def _read_choice(choice: Json, notes: Notes) -> Json:
    if choice is None or isinstance(choice, str):
        return choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    inner = choice.get(kind) if isinstance(choice, dict) and isinstance(kind, str) else None
    if kind in ("function", "custom") and isinstance(inner, dict):
        return {"type": "function", "function": {"name": str(inner.get("name", ""))}}
    if kind == "allowed_tools":  # taking the others out of the prompt would rewrite its head
        notes.add("not enforced: tool_choice.allowed_tools")
        return "required" if isinstance(inner, dict) and inner.get("mode") == "required" else "auto"
    notes.add(f"dropped: tool_choice of type {str(kind)[:80]}")
    return "auto"
