"""What an answer must know of its request: the fields it repeats, and the tools that aren't plain functions to the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from capture_proxy.reply import Json, ToolCall

ToolKind: TypeAlias = Literal["function", "custom"]


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How a client knows a tool: its kind and name, and the namespace around it, if any."""

    kind: ToolKind
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """Travels in `ChatRequest.echo`.

    `fields` are repeated in every response object, each as JSON text, which also holds the integers that orjson doesn't write. `tools`
    has the form of each model-visible name that isn't a plain function of that name. Reasoning is shown as a summary where the
    client asked for one, else as reasoning text.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, ToolForm] = field(default_factory=dict)
    is_summary: bool = False
    is_encrypted: bool = False
    """The client asked for `reasoning.encrypted_content`."""

    def to_json(self) -> dict[str, Json]:
        """As plain JSON values."""
        return {
            "fields": dict(self.fields),
            "tools": {name: asdict(form) for name, form in self.tools.items()},
            "is_summary": self.is_summary,
            "is_encrypted": self.is_encrypted,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> AnswerForm:
        """The form again; of `{}`, the one that repeats nothing."""
        if not value:
            return cls()
        return cls(**{**value, "tools": {name: ToolForm(**form) for name, form in value["tools"].items()}})

    def of(self, call: ToolCall) -> ToolForm:
        """The form in which a sampled call goes back to the client; one of an unknown tool goes back under its own name."""
        return self.tools.get(call.name) or ToolForm("function", call.name)
