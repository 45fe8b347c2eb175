"""Tools and tool choice of a generateContent request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.google.fields import bad, ignore_others, want_object, want_objects
from capture_proxy.dialects.google.schema import json_schema
from capture_proxy.dialects.tools import settle_choice
from capture_proxy.reply import Json

_DECLARATION: Final = ("name", "description", "parameters", "parametersJsonSchema")


def read_tools(value: Json, notes: Notes) -> list[dict[str, Json]]:
    """The declared functions of all entries, in order. Every other kind is hosted by the vendor: dropped and noted."""
    tools: list[dict[str, Json]] = []
    for entry, tool in enumerate(want_objects(value, "tools")):
        for kind in tool.keys() - {"functionDeclarations"}:
            if tool[kind] is not None:
                notes.add(f"dropped hosted tool: {kind[:80]}")
        where = f"tools[{entry}].functionDeclarations"
        for position, declared in enumerate(want_objects(tool.get("functionDeclarations"), where)):
            tools.append(_read_declaration(declared, f"{where}[{position}]", notes))
    return tools


def _read_declaration(declared: Mapping[str, Json], where: str, notes: Notes) -> dict[str, Json]:
    name = declared.get("name")
    if not isinstance(name, str) or not name:
        raise bad(f"{where}.name", "missing")
    ignore_others(declared, _DECLARATION, "functionDeclarations", notes)
    function: dict[str, Json] = {"name": name}
    if declared.get("description") is not None:
        function["description"] = declared["description"]
    schema = declared.get("parametersJsonSchema")  # JSON Schema already: nothing in it is ours to change
    if not isinstance(schema, dict):
        schema = json_schema(declared.get("parameters"), notes)
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def read_choice(value: Json, tools: Sequence[dict[str, Json]], notes: Notes) -> Json:
    """OpenAI's tool choice: a single allowed name is a named choice, several are `required` with all tools left in the prompt."""
    config = want_object(value, "toolConfig")
    ignore_others(config, ("functionCallingConfig",), "toolConfig", notes)
    calling = want_object(config.get("functionCallingConfig"), "toolConfig.functionCallingConfig")
    ignore_others(calling, ("mode", "allowedFunctionNames"), "toolConfig.functionCallingConfig", notes)
    if not calling:
        return None
    mode = str(calling.get("mode") or "MODE_UNSPECIFIED").upper()
    sent = calling.get("allowedFunctionNames")
    allowed = [name for name in sent if isinstance(name, str)] if isinstance(sent, list) else []
    if mode not in {"ANY", "AUTO", "NONE", "VALIDATED", "MODE_UNSPECIFIED"}:
        notes.add(f"ignored: toolConfig mode {mode[:40]}")
    if mode != "ANY":
        if allowed:
            notes.add(f"ignored: allowedFunctionNames with mode {mode[:40]}")
        return settle_choice("none" if mode == "NONE" else "auto", tools, notes)
    declared = {tool["function"]["name"] for tool in tools}
    names = [name for name in dict.fromkeys(allowed) if name in declared] or allowed[:1]
    if len(names) == 1:
        return settle_choice({"type": "function", "function": {"name": names[0]}}, tools, notes)
    if names:
        notes.add("ignored: which of several allowedFunctionNames, any tool may be called")
    return settle_choice("required", tools, notes)
