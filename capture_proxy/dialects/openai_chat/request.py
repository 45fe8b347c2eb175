"""Reads a Chat Completions request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture_proxy.dialects.body import Notes, copy_numbers, parse_body, want_count, want_list, want_strings
from capture_proxy.dialects.openai_chat.messages import read_messages
from capture_proxy.dialects.tools import settle_choice
from capture_proxy.reply import ChatRequest, Json, ProxyError

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
)
_KNOWN = (
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "n",
    "stream",
    "stream_options",
    "response_format",
    "chat_template_kwargs",
    "reasoning_effort",
    *_SAMPLING,
)


def parse_request(path: str, headers: Mapping[str, str], body: bytes) -> ChatRequest:
    """The normalised request. Raises ProxyError(bad_request) that names the field."""
    del path, headers
    notes = Notes()
    value = parse_body(body, notes)
    if (count := want_count(value, "n")) not in {None, 1}:
        raise ProxyError(
            "bad_request", f"n: only one answer per request is possible, not {count}; send the request again", param="n"
        )
    tools = _read_tools(want_list(value, "tools"), notes)
    choice = _read_choice(value.get("tool_choice"))
    options = value.get("stream_options") or {}
    notes.ignored_fields(value, _KNOWN)
    return ChatRequest(
        dialect="openai_chat",
        model=value["model"] if isinstance(value.get("model"), str) else "",
        messages=read_messages(want_list(value, "messages"), notes),
        tools=tools,
        tool_choice=settle_choice(choice, tools, notes),
        parallel_tool_calls=value.get("parallel_tool_calls") is not False,
        sampling=_read_sampling(value),
        response_format=_read_format(value.get("response_format")),
        stream=value.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        template_kwargs=_read_template_kwargs(value),
        notes=notes.sorted(),
    )


def _read_sampling(value: Mapping[str, Json]) -> dict[str, Any]:
    sampling = copy_numbers(value, _SAMPLING)
    limit = want_count(value, "max_completion_tokens") or want_count(value, "max_tokens")
    if limit is not None:
        sampling["max_tokens"] = limit
    if stop := want_strings(value.get("stop"), "stop"):
        sampling["stop"] = stop
    return sampling


def _read_tools(tools: list[Json], notes: Notes) -> list[dict[str, Json]]:
    """Function tools, schemas untouched; hosted kinds are dropped and noted."""
    kept: list[dict[str, Json]] = []
    for position, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            kind = tool.get("type") if isinstance(tool, dict) else None
            notes.add(f"dropped hosted tool: {kind}")
            continue
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise ProxyError(
                "bad_request", f"tools.{position}.function.name: missing", param=f"tools.{position}.function.name"
            )
        kept.append(
            {
                "type": "function",
                "function": {
                    key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None
                },
            }
        )
    return kept


def _read_choice(choice: Json) -> Json:
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("function"), dict):
        return {"type": "function", "function": {"name": str(choice["function"].get("name", ""))}}
    return "auto"


def _read_format(value: Json) -> dict[str, Json] | None:
    """A structured-output request; plain text counts as none."""
    return value if isinstance(value, dict) and value.get("type") not in {None, "text"} else None


def _read_template_kwargs(value: Mapping[str, Json]) -> dict[str, Json]:
    kwargs = value.get("chat_template_kwargs")
    result: dict[str, Json] = dict(kwargs) if isinstance(kwargs, dict) else {}
    if isinstance(value.get("reasoning_effort"), str):
        result.setdefault("reasoning_effort", value["reasoning_effort"])
    return result
