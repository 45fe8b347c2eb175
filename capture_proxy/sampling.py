"""Which sampling a call really gets: the task's word over the request's, within what the context has room for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import orjson

from capture_proxy.reply import ProxyError

NEUTRAL: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
)
"""What nobody sets is sent to the engine all the same: its own defaults (a model may bring some) would stand in no record."""


def effective_sampling(
    requested: Mapping[str, Any],
    overrides: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    prompt_tokens: int,
    context_length: int | None,
    default_max_tokens: int,
    stop_token_ids: Sequence[int],
    response_format: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The sampling for the engine, and notes on what was changed.

    Raises ProxyError(context_overflow) when the prompt leaves no room for a single token, and ProxyError(bad_request) for an output
    format that no engine can be held to.
    """
    merged = {**NEUTRAL, **{name: value for name, value in defaults.items() if value is not None}}
    merged |= {name: value for name, value in {**requested, **overrides}.items() if value is not None}
    notes = [
        f"{name}: task overrides request"
        for name in overrides
        if name in requested and requested[name] != overrides[name]
    ]
    room = None if context_length is None else context_length - prompt_tokens
    if room is not None and room < 1:
        raise ProxyError(
            "context_overflow",
            f"This model's maximum context length is {context_length} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens. Please reduce the length of the messages.",
            param="messages",
            context=(prompt_tokens, context_length or 0),
        )
    wanted = int(merged.get("max_tokens", default_max_tokens))
    if room is not None and wanted > room:
        notes.append(f"max_tokens: {wanted} cut to the {room} tokens that the context has room for")
        wanted = room
    merged["max_tokens"] = wanted
    merged["stop_token_ids"] = sorted({*merged.get("stop_token_ids", ()), *stop_token_ids})
    if (schema := _schema_of(response_format)) is not None:
        merged["json_schema"] = schema
        notes.append("constrained: the logprobs are of a distribution masked by json_schema")
    return merged, tuple(notes)


def _schema_of(response_format: Mapping[str, Any] | None) -> str | None:
    """The JSON Schema (as text, keys in the client's order) that the output must satisfy, if any."""
    kind = response_format.get("type") if response_format else None
    if response_format is None or kind in {None, "text"}:
        return None
    if kind == "json_object":
        return '{"type":"object"}'
    if kind != "json_schema":
        raise ProxyError("bad_request", f"the output format {kind!r} is unknown here", param="response_format")
    wanted = response_format.get("json_schema")
    schema = wanted.get("schema") if isinstance(wanted, Mapping) else None
    if not isinstance(schema, Mapping):
        raise ProxyError("bad_request", "the output format json_schema needs a schema", param="response_format")
    try:
        return orjson.dumps(schema).decode()
    except TypeError as exc:  # an integer beyond 64 bits
        raise ProxyError(
            "bad_request", f"the output format's schema can't be used: {exc}", param="response_format"
        ) from exc
