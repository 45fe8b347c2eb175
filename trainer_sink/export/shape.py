"""From a trace's messages to a training conversation: OpenAI's message form, the same keys and types in every row.

Chat templates and column types both want it plain: text content is one string (never null), a tool call's arguments are one
JSON text (or, when asked for, one object), and nothing stands in a message but what OpenAI's form and templates know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from schemas import json_text

Arguments = Literal["string", "object"]
Tools = Literal["list", "string"]
Images = Literal["refuse", "placeholder", "keep"]

SEPARATOR: Final = "\n"
"""Joins the text parts of one message, as the proxy does."""
_MAX_INT: Final = 2**63
_ROLES: Final = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

Message = dict[str, Any]


class UnusableError(ValueError):
    """A trace that can't be made a conversation; `reason` is the name under which it is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How conversations are spelt.

    `images`: refuse the conversation, put a text in their place, or keep them (then every content is a list of parts).
    """

    arguments: Arguments = "string"
    tools: Tools = "list"
    keep_reasoning: bool = True
    images: Images = "refuse"

    def to_json(self) -> dict[str, Any]:
        """As the manifest names it."""
        return {
            "arguments": self.arguments,
            "tools": self.tools,
            "keep_reasoning": self.keep_reasoning,
            "images": self.images,
        }


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that end with the assistant's, and the tools that it could call. `repaired` counts values JSON readers can't take."""

    messages: list[Message]
    tools: list[Any]
    repaired: int = 0

    @property
    def turns(self) -> int:
        """The assistant's messages."""
        return sum(m["role"] == "assistant" for m in self.messages)


@dataclass(slots=True)
class _Cleaner:
    """Replaces what Arrow and JSON readers refuse: lone surrogates (by U+FFFD) and whole numbers beyond 64 bits (by floats)."""

    repaired: int = field(default=0)

    def clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int) and not -_MAX_INT <= value < _MAX_INT:
            self.repaired += 1
            return float(value) if abs(value) < 10**300 else str(value)
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.clean(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(v) for v in value]
        return value

    def text(self, value: str) -> str:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            self.repaired += 1
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value


def cleaned(value: Any) -> Any:
    """The same value without what Arrow and JSON readers refuse."""
    return _Cleaner().clean(value)


def conversation(messages: Any, tools: Any, shape: Shape) -> Conversation:
    """The conversation of a trace. Raises UnusableError with the reason: `malformed_message`, `images`, `bad_arguments`, ….

    What was said stays word for word; keys that belong to one API or harness (`refusal`, `turn_id` …) go.
    """
    if not isinstance(messages, list) or not messages:
        raise UnusableError("no_messages")
    cleaner = _Cleaner()
    made = [_message(message, shape, cleaner) for message in messages]
    if made[-1]["role"] != "assistant":
        raise UnusableError("no_reply")
    if _is_empty(made[-1]):
        raise UnusableError("empty_reply")
    known = [_tool(tool, cleaner) for tool in tools] if isinstance(tools, list) else []
    return Conversation(made, known, cleaner.repaired)


def _is_empty(message: Message) -> bool:
    return not (message.get("tool_calls") or message.get("reasoning_content") or message["content"])


def _message(message: Any, shape: Shape, cleaner: _Cleaner) -> Message:
    role = _ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        raise UnusableError("malformed_message")
    made: Message = {"role": role, "content": _content(message.get("content"), shape, cleaner)}
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if shape.keep_reasoning and isinstance(reasoning, str) and reasoning:
            made["reasoning_content"] = cleaner.text(reasoning)
        if calls := message.get("tool_calls"):
            if not isinstance(calls, list):
                raise UnusableError("malformed_message")
            made["tool_calls"] = [_call(call, shape, cleaner) for call in calls]
    if role == "tool":
        made["tool_call_id"] = cleaner.text(str(message.get("tool_call_id") or ""))
    if isinstance(name := message.get("name"), str) and name:
        made["name"] = cleaner.text(name)
    return made


def _content(content: Any, shape: Shape, cleaner: _Cleaner) -> Any:
    """One string; with `images="keep"` always a list of parts, so that a column has one type."""
    if content is None or isinstance(content, str):
        text = cleaner.text(content or "")
        return text if shape.images != "keep" else [{"type": "text", "text": text}] if text else []
    if not isinstance(content, list):
        raise UnusableError("malformed_message")
    parts = [_part(part, shape, cleaner) for part in content]
    if shape.images == "keep":
        return parts
    return SEPARATOR.join(part["text"] for part in parts)


def _part(part: Any, shape: Shape, cleaner: _Cleaner) -> Message:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        return {"type": "text", "text": cleaner.text(str(part.get("text") or ""))}
    if kind != "image_url":
        raise UnusableError("unsupported_content")
    if shape.images == "refuse":
        raise UnusableError("images")
    image = part.get("image_url")
    url = str(image.get("url") if isinstance(image, Mapping) else image or "")
    if shape.images == "keep":
        return {"type": "image_url", "image_url": {"url": cleaner.text(url)}}
    media = url[5:].partition(";")[0] if url.startswith("data:") else cleaner.text(url)
    return {"type": "text", "text": f"[image: {media}]"}


def _call(call: Any, shape: Shape, cleaner: _Cleaner) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("name"):
        raise UnusableError("malformed_message")
    return {
        "id": cleaner.text(str(call.get("id") or "")),
        "type": "function",
        "function": {
            "name": cleaner.text(str(function["name"])),
            "arguments": _arguments(function.get("arguments"), shape, cleaner),
        },
    }


def _arguments(arguments: Any, shape: Shape, cleaner: _Cleaner) -> Any:
    """As text exactly as sampled, or the object it spells. Text that spells none would teach calls that no tool can take."""
    if isinstance(arguments, str) or arguments is None:
        text = arguments or "{}"
        try:
            value = json_text.load(text)
        except json_text.JsonTextError:
            value = None
    else:
        value, text = arguments, ""
    if not isinstance(value, dict):
        raise UnusableError("bad_arguments")
    if shape.arguments == "object":
        return cleaner.clean(value)
    return cleaner.text(text or json_text.dump(value))


def _tool(tool: Any, cleaner: _Cleaner) -> Any:
    """A tool in OpenAI's form; one that only has a name, description and parameters is put into it."""
    if isinstance(tool, Mapping) and "function" not in tool and "name" in tool:
        tool = {"type": "function", "function": dict(tool)}
    return cleaner.clean(tool)
