"""Reads a generateContent request, generating or counting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from capture_proxy.dialects.body import Notes, copy_numbers, parse_body, want_count, want_number, want_strings
from capture_proxy.dialects.google.contents import read_contents, read_system
from capture_proxy.dialects.google.fields import bad, camel, ignore_others, want_object
from capture_proxy.dialects.google.route import Target, read_target
from capture_proxy.dialects.google.schema import json_schema
from capture_proxy.dialects.google.tools import read_choice, read_tools
from capture_proxy.reply import ChatRequest, Json
from capture_proxy.turn_ids import take_turn_ids

_CONFIG: Final = "generationConfig"
_KNOWN: Final = ("contents", "systemInstruction", "tools", "toolConfig", _CONFIG, "cachedContent", "model")
_SAMPLING: Final = {
    "temperature": "temperature",
    "topP": "top_p",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "seed": "seed",
}
_KNOWN_CONFIG: Final = (
    *_SAMPLING,
    "topK",
    "maxOutputTokens",
    "stopSequences",
    "candidateCount",
    "responseMimeType",
    "responseSchema",
    "responseJsonSchema",
    "thinkingConfig",
    "responseModalities",
    "responseLogprobs",
    "logprobs",
)


def parse_request(path: str, headers: Mapping[str, str], body: bytes) -> ChatRequest:
    """The normalised request; model and framing stand in the path. Raises ProxyError(bad_request) that names the field."""
    del headers
    notes = Notes()
    return _read(_target(path), camel(parse_body(body, notes)), notes)


def parse_count(path: str, headers: Mapping[str, str], body: bytes) -> ChatRequest:
    """A countTokens request: bare contents, or a whole request in `generateContentRequest`."""
    del headers
    notes = Notes()
    value = camel(parse_body(body, notes))
    if value.get("generateContentRequest") is not None:
        value = want_object(value["generateContentRequest"], "generateContentRequest")
    return _read(_target(path), value, notes)


def _target(path: str) -> Target:
    return read_target(path) or Target("", "", is_sse=False)


def _read(target: Target, value: dict[str, Json], notes: Notes) -> ChatRequest:
    if value.get("cachedContent"):
        raise bad("cachedContent", "there is no cached content here; send the whole prompt in contents")
    notes.ignored_fields(value, _KNOWN)
    config = want_object(value.get("generationConfig"), _CONFIG)
    ignore_others(config, _KNOWN_CONFIG, _CONFIG, notes)
    placed = {f"{_CONFIG}.{name}": item for name, item in config.items()}  # so that errors name the place
    if (count := want_count(placed, f"{_CONFIG}.candidateCount")) not in {None, 1}:
        raise bad(f"{_CONFIG}.candidateCount", f"only one candidate is possible, not {count}; send the request again")
    tools = read_tools(value.get("tools"), notes)
    system = read_system(value.get("systemInstruction"), notes)
    messages = system + read_contents(value.get("contents"), notes)
    thinking = want_object(config.get("thinkingConfig"), f"{_CONFIG}.thinkingConfig")
    turn_ids = take_turn_ids(messages)
    return ChatRequest(
        dialect="google",
        model=target.model,
        messages=messages,
        tools=tools,
        tool_choice=read_choice(value.get("toolConfig"), tools, notes),
        sampling=_read_sampling(placed),
        response_format=_read_format(config, notes),
        stream=target.is_stream,
        include_usage=True,
        template_kwargs=_read_thinking(thinking, notes),
        turn_ids=turn_ids if any(turn_ids) else (),
        has_instructions=bool(system),
        top_logprobs=_read_logprobs(placed),
        echo={"thoughts": thinking.get("includeThoughts") is True, "array": target.is_stream and not target.is_sse},
        notes=notes.sorted(),
    )


def _read_sampling(config: Mapping[str, Json]) -> dict[str, Any]:
    """`config` has its place in its names."""
    numbers = copy_numbers(config, [f"{_CONFIG}.{name}" for name in _SAMPLING])
    sampling = {_SAMPLING[name.removeprefix(f"{_CONFIG}.")]: number for name, number in numbers.items()}
    if (top_k := want_count(config, f"{_CONFIG}.topK")) is not None:
        sampling["top_k"] = top_k
    if (limit := want_count(config, f"{_CONFIG}.maxOutputTokens")) is not None:
        sampling["max_tokens"] = limit
    if stop := want_strings(config.get(f"{_CONFIG}.stopSequences"), f"{_CONFIG}.stopSequences"):
        sampling["stop"] = stop
    return sampling


def _read_format(config: Mapping[str, Json], notes: Notes) -> dict[str, Json] | None:
    """Structured output. Anything but text is refused: a model of ours can't draw or speak."""
    modalities = config.get("responseModalities")
    if isinstance(modalities, list) and modalities and not any(str(one).upper() == "TEXT" for one in modalities):
        raise bad(f"{_CONFIG}.responseModalities", f"only TEXT is possible, not {', '.join(map(str, modalities))[:80]}")
    kind = config.get("responseMimeType") or "text/plain"
    if kind == "text/plain":
        return None
    if kind != "application/json":
        notes.add(f"ignored: responseMimeType {str(kind)[:80]}")
        return None
    schema = config.get("responseJsonSchema")
    if not isinstance(schema, dict):
        schema = json_schema(config.get("responseSchema"), notes)
    if not isinstance(schema, dict):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}


def _read_thinking(thinking: Mapping[str, Json], notes: Notes) -> dict[str, Json]:
    """The template's thinking switch: a budget of 0 is off, any other is on; a level is also the effort that some templates know."""
    ignore_others(thinking, ("includeThoughts", "thinkingBudget", "thinkingLevel"), f"{_CONFIG}.thinkingConfig", notes)
    level, budget = thinking.get("thinkingLevel"), thinking.get("thinkingBudget")
    if isinstance(level, str) and level.upper() in {"LOW", "MEDIUM", "HIGH"}:
        return {"enable_thinking": True, "reasoning_effort": level.lower()}
    if isinstance(level, str) and level.upper() == "MINIMAL":
        return {"enable_thinking": False}
    if isinstance(budget, int):
        return {"enable_thinking": budget != 0}
    return {}


def _read_logprobs(config: Mapping[str, Json]) -> int | None:
    """How many alternatives per token are wanted; None where no logprobs are."""
    if config.get(f"{_CONFIG}.responseLogprobs") is not True:
        return None
    return int(max(0, want_number(config, f"{_CONFIG}.logprobs") or 0))
