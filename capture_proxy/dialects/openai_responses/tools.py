"""Tools of a Responses request as functions for the model, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.freeform import freeform_function
from capture_proxy.dialects.openai_responses.form import ToolForm, ToolKind
from capture_proxy.dialects.tools import settle_choice
from capture_proxy.reply import Json, ProxyError

_NAMESPACE_SEPARATOR = "__"


@dataclass(slots=True)
class ToolBox:
    """The tools of one request: `functions` for the model, `forms` by model-visible name where those differ from the client's."""

    functions: list[dict[str, Json]] = field(default_factory=list)
    forms: dict[str, ToolForm] = field(default_factory=dict)
    _names: dict[tuple[str, str], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def add(self, tools: list[Json], where: str, notes: Notes) -> None:
        """Adds tools as the client defines them; hosted and unknown kinds are dropped and noted. Raises ProxyError(bad_request)."""
        namespaces: list[tuple[dict[str, Any], str]] = []
        for position, tool in enumerate(tools):
            at = f"{where}.{position}"
            if not isinstance(tool, dict):
                raise ProxyError("bad_request", f"{at}: must be an object", param=at)
            match tool.get("type"):
                case "function" | "custom" as kind:
                    self._add_one(kind, tool, "", at, notes)
                case "namespace":
                    namespaces.append((tool, at))
                case kind:
                    notes.add(f"dropped hosted tool: {str(kind)[:80]}")
        for tool, at in namespaces:  # after the plain ones, which keep their names whatever a namespace holds
            self._add_namespace(tool, at, notes)

    def visible_name(self, name: str, namespace: str) -> str:
        """The name under which the model knows a tool that the client calls `name` in `namespace`."""
        return self._names.get((namespace, name)) or _joined(namespace, name)

    def _add_namespace(self, namespace: dict[str, Any], where: str, notes: Notes) -> None:
        name = _name(namespace, where)
        members = namespace.get("tools")
        if not isinstance(members, list):
            raise ProxyError("bad_request", f"{where}.tools: must be a list", param=f"{where}.tools")
        about = namespace.get("description")
        for position, tool in enumerate(members):
            at = f"{where}.tools.{position}"
            if not isinstance(tool, dict):
                raise ProxyError("bad_request", f"{at}: must be an object", param=at)
            match tool.get("type"):
                case "function" | "custom" as kind:
                    self._add_one(kind, tool if position else _introduced(about, tool), name, at, notes)
                case kind:
                    notes.add(f"dropped hosted tool: {str(kind)[:80]}")

    def _add_one(self, kind: ToolKind, tool: dict[str, Any], namespace: str, where: str, notes: Notes) -> None:
        name = _name(tool, where)
        if (namespace, name) in self._names:
            notes.add("dropped: a second tool of the same name")
            return
        visible = self._free(_joined(namespace, name))
        self._names[namespace, name] = visible
        self._taken.add(visible)
        if kind == "custom" or visible != name:
            self.forms[visible] = ToolForm(kind, name, namespace)
        if tool.get("defer_loading") is True:
            notes.add("deferred tool shown at once")  # the search that would load it runs at the vendor
        self.functions.append({"type": "function", "function": _function(kind, visible, tool, notes)})

    def _free(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        return name


def _joined(namespace: str, name: str) -> str:
    if not namespace:
        return name
    return f"{namespace.removesuffix(_NAMESPACE_SEPARATOR)}{_NAMESPACE_SEPARATOR}{name}"


def _introduced(about: Json, tool: dict[str, Any]) -> dict[str, Any]:
    """A namespace's first tool, with what the namespace says of itself in front: once is enough."""
    texts = [text for text in (about, tool.get("description")) if isinstance(text, str) and text]
    return {**tool, "description": "\n\n".join(texts)}


def _name(tool: dict[str, Any], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ProxyError("bad_request", f"{where}.name: missing", param=f"{where}.name")
    return name


def _function(kind: ToolKind, name: str, tool: dict[str, Any], notes: Notes) -> dict[str, Json]:
    description = tool.get("description")
    if kind == "custom":
        return freeform_function(name, description, tool.get("format"), notes)
    function: dict[str, Json] = {"name": name}
    if isinstance(description, str) and description:
        function["description"] = description
    sent = tool.get("parameters")
    return {**function, "parameters": sent if isinstance(sent, dict) else {"type": "object", "properties": {}}}


def read_choice(choice: Json, tools: ToolBox, notes: Notes) -> Json:
    """The tool choice in Chat's form. A restriction to some of the tools is only carried: taking the others out would rewrite the prompt."""
    return settle_choice(_choice(choice, tools, notes), tools.functions, notes)


def _choice(choice: Json, tools: ToolBox, notes: Notes) -> Json:
    if choice is None or isinstance(choice, str):
        return choice
    match choice.get("type") if isinstance(choice, dict) else None:
        case "function" | "custom":
            name = tools.visible_name(str(choice.get("name") or ""), str(choice.get("namespace") or ""))
            return {"type": "function", "function": {"name": name}}
        case "allowed_tools":
            notes.add("not enforced: tool_choice.allowed_tools")
            return "required" if choice.get("mode") == "required" else "auto"
        case kind:
            notes.add(f"dropped: tool_choice of a hosted tool: {str(kind)[:80]}")
            return "auto"


def echoed(tools: list[Json]) -> list[Json]:
    """The tools as a response repeats them: functions with the fields that clients' types require."""
    return [
        {"parameters": None, "strict": False, "description": None, **tool}
        if isinstance(tool, Mapping) and tool.get("type") == "function"
        else tool
        for tool in tools
    ]
