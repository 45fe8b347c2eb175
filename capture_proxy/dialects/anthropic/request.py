"""Reads a Messages request, generating or counting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture_proxy.dialects.anthropic.client_tools import client_tool
from capture_proxy.dialects.anthropic.messages import read_messages, read_system
from capture_proxy.dialects.body import Notes, copy_numbers, parse_body, want_count, want_list, want_strings
from capture_proxy.dialects.tools import settle_choice
from capture_proxy.reply import ChatRequest, Json, ProxyError
from capture_proxy.turn_ids import take_turn_ids

_KNOWN = (
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "stream",
    "thinking",
    "output_config",
    "output_format",
    "mcp_servers",
    "thread",
)

_PLAIN_TOOL_TYPES = (None, "custom")  # compared, not hashed: a client may send anything
"""Tools that the client defines and runs; most other types are hosted by the vendor, and a local model has nobody to run them."""

_TOOL_FIELDS = frozenset({"type", "name", "description", "input_schema", "defer_loading", "cache_control"})


def parse_request(path: str, headers: Mapping[str, str], body: bytes) -> ChatRequest:
    """The normalised request. Raises ProxyError(bad_request) that names the field."""
    del path
    notes = Notes()
    value = parse_body(body, notes)
    notes.ignored_fields(value, _KNOWN)
    for beta in next((text for name, text in headers.items() if name.lower() == "anthropic-beta"), "").split(","):
        if beta.strip():
            notes.add(f"ignored beta: {beta.strip()[:80]}")
    if (
        value.get("thread") is not None
    ):  # the rest of the conversation stands with the vendor; clients send it whole after a 400
        raise ProxyError(
            "bad_request", "thread: message threads are not supported here; send the whole conversation", param="thread"
        )
    if value.get("mcp_servers"):
        notes.add("dropped: mcp_servers, which the vendor would call")
    tools, deferred = _read_tools(want_list(value, "tools"), notes)
    messages = read_system(value.get("system"), notes) + read_messages(want_list(value, "messages"), deferred, notes)
    choice, is_parallel = _read_choice(value.get("tool_choice"))
    turn_ids = take_turn_ids(messages)
    return ChatRequest(
        dialect="anthropic",
        model=value["model"] if isinstance(value.get("model"), str) else "",
        messages=messages,
        tools=tools,
        tool_choice=settle_choice(choice, tools, notes),
        parallel_tool_calls=is_parallel,
        sampling=_read_sampling(value),
        response_format=_read_format(value, notes),
        stream=value.get("stream") is True,
        include_usage=True,
        template_kwargs=_read_thinking(value.get("thinking"), notes),
        notes=notes.sorted(),
        turn_ids=turn_ids if any(turn_ids) else (),
        deferred_tools=tuple(deferred),
    )


def _read_sampling(value: Mapping[str, Json]) -> dict[str, Any]:
    sampling = copy_numbers(value, ("temperature", "top_p", "top_k"))
    if (limit := want_count(value, "max_tokens")) is not None:
        sampling["max_tokens"] = limit
    if stop := want_strings(value.get("stop_sequences"), "stop_sequences"):
        sampling["stop"] = stop
    return sampling


def _read_tools(tools: list[Json], notes: Notes) -> tuple[list[dict[str, Json]], dict[str, dict[str, Json]]]:
    """The tools for the head of the prompt, and the deferred ones, which stand where a tool search names them.

    A deferred tool in the head would rewrite the prefix of the session as soon as the client adds it. Where the search is one of the
    vendor's, nothing would ever name them: then they stand in the head from the start.
    """
    head: list[dict[str, Json]] = []
    deferred: dict[str, dict[str, Json]] = {}
    is_search_hosted = False
    for position, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise ProxyError("bad_request", f"tools.{position}: must be an object", param=f"tools.{position}")
        function = _function(tool, position, notes)
        if function is None:
            is_search_hosted = is_search_hosted or str(tool.get("type")).startswith("tool_search_tool")
            notes.add(f"dropped hosted tool: {str(tool.get('type'))[:80]}")
        elif tool.get("defer_loading") is True:
            deferred[function["name"]] = function
        else:
            head.append({"type": "function", "function": function})
    if deferred and is_search_hosted:
        notes.add("deferred tools shown at once: their search is hosted")
        return head + [{"type": "function", "function": function} for function in deferred.values()], {}
    if deferred:
        notes.add("deferred tools kept out of the prompt's head")
    return head, deferred


def _function(tool: dict[str, Any], position: int, notes: Notes) -> dict[str, Json] | None:
    """A tool that the client runs as a function; None for one that the vendor would run."""
    if tool.get("type") not in _PLAIN_TOOL_TYPES:
        return client_tool(tool)
    for extra in tool.keys() - _TOOL_FIELDS:
        if tool[extra] not in (None, False, [], {}):
            notes.add(f"ignored tool field: {extra[:80]}")
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise ProxyError("bad_request", f"tools.{position}.name: missing", param=f"tools.{position}.name")
    function: dict[str, Json] = {"name": name}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    schema = tool.get("input_schema")
    function["parameters"] = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    return function


def _read_choice(choice: Json) -> tuple[Json, bool]:
    """(OpenAI's tool_choice, whether calls may come in parallel)."""
    if not isinstance(choice, dict):
        return None, True
    is_parallel = choice.get("disable_parallel_tool_use") is not True
    match choice.get("type"):
        case "any":
            return "required", is_parallel
        case "none":
            return "none", is_parallel
        case "tool":
            return {"type": "function", "function": {"name": str(choice.get("name") or "")}}, is_parallel
        case _:
            return "auto", is_parallel


def _read_thinking(thinking: Json, notes: Notes) -> dict[str, Json]:
    """The template's thinking switch, and nothing else: budgets and display are the vendor's."""
    if not isinstance(thinking, dict):
        return {}
    for name in thinking.keys() - {"type"}:
        notes.add(f"ignored field: thinking.{name[:80]}")
    match thinking.get("type"):
        case "enabled" | "adaptive":
            return {"enable_thinking": True}
        case "disabled":
            return {"enable_thinking": False}
        case _:
            return {}


def _read_format(value: Mapping[str, Json], notes: Notes) -> dict[str, Json] | None:
    """The schema that the answer must satisfy: in `output_config.format`, or in the older `output_format`."""
    config = value.get("output_config")
    config = config if isinstance(config, dict) else {}
    for name in config.keys() - {"format"}:
        notes.add(f"ignored field: output_config.{name[:80]}")
    wanted = config.get("format") or value.get("output_format")
    if not isinstance(wanted, dict):
        return None
    if wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), dict):
        raise ProxyError(
            "bad_request",
            "output_config.format: must be of type json_schema and have a schema",
            param="output_config.format",
        )
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted["schema"]}}
