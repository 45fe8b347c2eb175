"""Reads a Chat Completions request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture_proxy.dialects.body import (
    Notes,
    copy_numbers,
    parse_body,
    want_count,
    want_list,
    want_number,
    want_strings,
)
from capture_proxy.dialects.openai_chat.messages import read_messages
from capture_proxy.dialects.openai_chat.tools import read_tools
from capture_proxy.reply import ChatRequest, Json, ProxyError
from capture_proxy.turn_ids import take_turn_ids

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

_EXTENSIONS = {
    "min_tokens": "min_new_tokens",
    "ignore_eos": "ignore_eos",
    "stop_token_ids": "stop_token_ids",
    "regex": "regex",
    "ebnf": "ebnf",
    "structural_tag": "structural_tag",
    "custom_params": "custom_params",
    "required_prefix_token_ids": "required_prefix_token_ids",
}
"""What engines take beyond the vendor's fields → its name in the engine's sampling: passed on as it is, never dropped."""

_KNOWN = (
    "model",
    "messages",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "web_search_options",
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
    "reasoning",
    "thinking",
    "enable_thinking",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "modalities",
    *_SAMPLING,
    *_EXTENSIONS,
)

_MAX_TOP_LOGPROBS = 20
"""The vendor's limit."""


def parse_request(path: str, headers: Mapping[str, str], body: bytes) -> ChatRequest:
    """The normalised request. Raises ProxyError(bad_request) that names the field."""
    del path, headers
    notes = Notes()
    value = parse_body(body, notes)
    _refuse_unsupported(value)
    tools, choice, echo = read_tools(value, notes)
    options = value.get("stream_options") or {}
    notes.ignored_fields(value, _KNOWN)
    messages = read_messages(want_list(value, "messages"), notes)
    turn_ids = take_turn_ids(messages)
    return ChatRequest(
        dialect="openai_chat",
        model=value["model"] if isinstance(value.get("model"), str) else "",
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=value.get("parallel_tool_calls") is not False,
        sampling=_read_sampling(value),
        response_format=_read_format(value.get("response_format")),
        stream=value.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        template_kwargs=_read_template_kwargs(value),
        notes=notes.sorted(),
        turn_ids=turn_ids if any(turn_ids) else (),
        top_logprobs=_read_logprobs(value),
        echo=echo,
    )


def _refuse_unsupported(value: Mapping[str, Json]) -> None:
    """What would change the answer and can't be given: better a clear error than another answer than the one asked for."""
    if (count := want_count(value, "n")) not in {None, 1}:
        raise ProxyError(
            "bad_request", f"n: only one answer per request is possible, not {count}; send the request again", param="n"
        )
    modalities = value.get("modalities")
    if isinstance(modalities, list) and any(kind != "text" for kind in modalities):
        raise ProxyError("bad_request", "modalities: only text can be answered", param="modalities")
    for name, why in (
        ("audio", "only text can be answered"),
        ("prediction", "predicted outputs are not supported"),
        ("logit_bias", "its token ids are those of another tokenizer"),
    ):
        if value.get(name):
            raise ProxyError("bad_request", f"{name}: {why}; leave it out", param=name)


def _read_sampling(value: Mapping[str, Json]) -> dict[str, Any]:
    sampling = copy_numbers(value, _SAMPLING)
    limit = want_count(value, "max_completion_tokens") or want_count(value, "max_tokens")
    if limit is not None:
        sampling["max_tokens"] = limit
    if stop := want_strings(value.get("stop"), "stop"):
        sampling["stop"] = stop
    sampling |= {name: value[sent] for sent, name in _EXTENSIONS.items() if value.get(sent) is not None}
    if not all(type(token) is int for token in want_list(sampling, "stop_token_ids")):
        raise ProxyError("bad_request", "stop_token_ids: must be a list of token ids", param="stop_token_ids")
    return sampling


def _read_logprobs(value: Mapping[str, Json]) -> int | None:
    count = want_number(value, "top_logprobs")
    if value.get("logprobs") is not True:
        if count:
            raise ProxyError("bad_request", "top_logprobs: needs logprobs to be true", param="top_logprobs")
        return None
    if count is not None and (count != int(count) or not 0 <= count <= _MAX_TOP_LOGPROBS):
        raise ProxyError(
            "bad_request", f"top_logprobs: must be a whole number up to {_MAX_TOP_LOGPROBS}", param="top_logprobs"
        )
    return int(count or 0)


def _read_format(value: Json) -> dict[str, Json] | None:
    """A structured-output request; plain text counts as none."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": kind}
    inner = value.get("json_schema")
    if kind != "json_schema" or not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise ProxyError(
            "bad_request",
            "response_format: must be of type text, json_object, or json_schema with json_schema.schema",
            param="response_format",
        )
    return value


def _read_template_kwargs(value: Mapping[str, Json]) -> dict[str, Json]:
    """The template's switches, in every spelling that clients of local models use; `chat_template_kwargs` wins."""
    result: dict[str, Json] = {}
    reasoning = value.get("reasoning")
    effort = value.get("reasoning_effort") or (reasoning.get("effort") if isinstance(reasoning, dict) else None)
    if isinstance(effort, str):
        result["reasoning_effort"] = effort
        if effort == "none":
            result["enable_thinking"] = False
    if isinstance(reasoning, dict) and isinstance(reasoning.get("enabled"), bool):
        result["enable_thinking"] = reasoning["enabled"]
    thinking = value.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") in {"enabled", "disabled"}:
        result["enable_thinking"] = thinking["type"] == "enabled"
    if isinstance(value.get("enable_thinking"), bool):
        result["enable_thinking"] = value["enable_thinking"]
    kwargs = value.get("chat_template_kwargs")
    return {**result, **kwargs} if isinstance(kwargs, dict) else result
