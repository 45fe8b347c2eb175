"""Reads a Responses request, generating or counting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from capture_proxy.dialects.body import (
    Notes,
    copy_numbers,
    dump_arguments,
    parse_body,
    want_count,
    want_list,
    want_number,
)
from capture_proxy.dialects.openai_responses.form import AnswerForm
from capture_proxy.dialects.openai_responses.ids import completion_of_response
from capture_proxy.dialects.openai_responses.items import added_tools, read_items
from capture_proxy.dialects.openai_responses.tools import ToolBox, echoed, read_choice
from capture_proxy.dialects.openai_responses.turns import take_recalls
from capture_proxy.dialects.pairing import pair_tools
from capture_proxy.reply import ChatRequest, Json, ProxyError
from capture_proxy.turn_ids import take_turn_ids

_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "seed")

_READ: Final = (
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_output_tokens",
    "stream",
    "stream_options",  # asks for padding at most
    "text",
    "reasoning",
    "include",
    "previous_response_id",
    "top_logprobs",
    "chat_template_kwargs",
    *_SAMPLING,
)

_REPEATED: Final[Mapping[str, Json]] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": None,
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields that a response repeats as they were sent, and what it says where they weren't."""

_NEUTRAL: Final[Mapping[str, frozenset[Json]]] = {
    "background": frozenset({False}),
    "truncation": frozenset({"disabled"}),
    "service_tier": frozenset({"auto", "default"}),
    "store": frozenset({True, False}),
}
"""Values that ask for nothing beyond what happens anyway."""

_SEALED_REASONING: Final = "reasoning.encrypted_content"
_LOGPROBS: Final = "message.output_text.logprobs"

_MAX_TOP_LOGPROBS: Final = 20

_REFUSED: Final = {
    "background": "a response is made while its client waits: leave it out",
    "conversation": "no conversations are kept here: send the items, or previous_response_id",
    "prompt": "no prompt templates are kept here: send instructions and input",
}


def parse_request(path: str, headers: Mapping[str, str], body: bytes) -> ChatRequest:
    """The normalised request. Raises ProxyError(bad_request) that names the field."""
    del path, headers
    notes = Notes()
    value = parse_body(body, notes)
    _refuse(value)
    _note_unused(value, notes)
    items = _items(value.get("input"))
    tools = ToolBox()
    tools.add(want_list(value, "tools"), "tools", notes)
    for where, more in added_tools(items):
        tools.add(more, where, notes)
    instructions = _instructions(value)
    continues = _continues(value.get("previous_response_id"))
    messages = instructions + read_items(items, tools, notes)
    if not messages and not continues:
        raise ProxyError("bad_request", "input: at least one item is required", param="input")
    recalls = take_recalls(messages)
    if not continues and not any(recalls):  # else calls that the results belong to aren't here yet
        messages = pair_tools(messages, notes)
    turn_ids = take_turn_ids(messages)
    return ChatRequest(
        dialect="openai_responses",
        model=value["model"] if isinstance(value.get("model"), str) else "",
        messages=messages,
        tools=tools.functions,
        tool_choice=read_choice(value.get("tool_choice"), tools, notes),
        parallel_tool_calls=value.get("parallel_tool_calls") is not False,
        sampling=_read_sampling(value),
        response_format=_read_format(value.get("text"), notes),
        stream=value.get("stream") is True,
        include_usage=True,
        template_kwargs=_read_template_kwargs(value, notes),
        notes=notes.sorted(),
        turn_ids=turn_ids if any(turn_ids) else (),
        top_logprobs=_read_logprobs(value),
        continues=continues,
        recalls=recalls if any(recalls) else (),
        has_instructions=bool(instructions),
        echo=_form(value, tools).to_json(),
    )


def _refuse(value: Mapping[str, Json]) -> None:
    for name, why in _REFUSED.items():
        sent = value.get(name)
        if sent is not None and sent is not False:
            raise ProxyError("bad_request", f"{name}: {why}", param=name)


def _note_unused(value: Mapping[str, Json], notes: Notes) -> None:
    known = {*_READ, *_REPEATED, *_REFUSED}
    notes.ignored_fields(value, known)
    for name in _REPEATED.keys() - set(_READ):
        sent = value.get(name)
        is_neutral = not isinstance(sent, dict | list) and sent in _NEUTRAL.get(name, ())
        if sent and not is_neutral:
            notes.add(f"repeated, without effect: {name}")
    for wanted in want_list(value, "include"):
        if wanted not in (_SEALED_REASONING, _LOGPROBS):
            notes.add(f"ignored include: {str(wanted)[:80]}")


def _items(sent: Json) -> list[Json]:
    if isinstance(sent, str):
        return [{"role": "user", "content": sent}]
    if sent is None or isinstance(sent, list):
        return sent or []
    raise ProxyError("bad_request", "input: must be a string or a list of items", param="input")


def _instructions(value: Mapping[str, Json]) -> list[dict[str, Json]]:
    sent = value.get("instructions")
    if sent is not None and not isinstance(sent, str):
        raise ProxyError("bad_request", "instructions: must be a string", param="instructions")
    return [{"role": "system", "content": sent}] if sent else []


def _continues(sent: Json) -> str:
    if sent is None:
        return ""
    completion_id = completion_of_response(sent)
    if completion_id is None:
        raise ProxyError(
            "bad_request",
            f"Previous response with id {str(sent)[:80]!r} not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return completion_id


def _read_sampling(value: Mapping[str, Json]) -> dict[str, Any]:
    sampling = copy_numbers(value, _SAMPLING)
    if (limit := want_count(value, "max_output_tokens")) is not None:
        sampling["max_tokens"] = limit
    return sampling


def _read_format(text: Json, notes: Notes) -> dict[str, Json] | None:
    """A structured-output request under Chat's name; plain text counts as none."""
    if text is None:
        return None
    if not isinstance(text, dict):
        raise ProxyError("bad_request", "text: must be an object", param="text")
    for name in text.keys() - {"format"}:
        notes.add(f"repeated, without effect: text.{name[:80]}")
    wanted: Any = text.get("format") or {}
    match wanted.get("type") if isinstance(wanted, dict) else wanted:
        case None | "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema" if isinstance(wanted.get("schema"), dict):
            schema = {name: wanted[name] for name in ("name", "strict", "schema") if wanted.get(name) is not None}
            return {"type": "json_schema", "json_schema": schema}
        case kind:
            raise ProxyError(
                "bad_request",
                f"text.format: {str(kind)[:80]!r} is not text, json_object, or json_schema with a schema",
                param="text.format",
            )


def _read_template_kwargs(value: Mapping[str, Json], notes: Notes) -> dict[str, Json]:
    sent = value.get("chat_template_kwargs")
    kwargs: dict[str, Json] = dict(sent) if isinstance(sent, dict) else {}
    reasoning = value.get("reasoning")
    if isinstance(reasoning, dict):
        if isinstance(effort := reasoning.get("effort"), str):
            kwargs.setdefault("reasoning_effort", effort)
            if effort == "none":
                kwargs.setdefault("enable_thinking", False)
        for name in reasoning.keys() - {"effort", "summary", "generate_summary"}:
            notes.add(f"ignored field: reasoning.{name[:80]}")
    return kwargs


def _read_logprobs(value: Mapping[str, Json]) -> int | None:
    count = want_number(value, "top_logprobs") or 0
    if count not in range(_MAX_TOP_LOGPROBS + 1):
        raise ProxyError(
            "bad_request", f"top_logprobs: must be a whole number up to {_MAX_TOP_LOGPROBS}", param="top_logprobs"
        )
    return int(count) if count or _LOGPROBS in want_list(value, "include") else None


def _form(value: Mapping[str, Json], tools: ToolBox) -> AnswerForm:
    fields = {name: usual if value.get(name) is None else value[name] for name, usual in _REPEATED.items()}
    sent_reasoning, sent_text = value.get("reasoning"), value.get("text")
    reasoning = sent_reasoning if isinstance(sent_reasoning, dict) else {}
    fields["reasoning"] = {"effort": None, "summary": None, **reasoning}
    fields["text"] = {"format": {"type": "text"}, **(sent_text if isinstance(sent_text, dict) else {})}
    fields["background"] = False
    fields["parallel_tool_calls"] = value.get("parallel_tool_calls") is not False
    fields["tool_choice"] = value.get("tool_choice") or "auto"
    fields["tools"] = echoed(want_list(value, "tools"))
    return AnswerForm(
        fields={name: dump_arguments(sent) for name, sent in fields.items()},
        tools=tools.forms,
        is_summary=bool(reasoning.get("summary") or reasoning.get("generate_summary")),
        is_encrypted=_SEALED_REASONING in want_list(value, "include"),
    )
