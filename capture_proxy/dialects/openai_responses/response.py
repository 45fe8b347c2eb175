"""Responses answers as one body, and the values that bodies and streams share."""

from __future__ import annotations

from typing import Literal, TypeAlias

import orjson

from capture_proxy.dialects.freeform import freeform_input
from capture_proxy.dialects.openai_responses.form import AnswerForm
from capture_proxy.dialects.openai_responses.ids import item_id, response_id
from capture_proxy.reply import Json, Reply, TokenLogprob, ToolCall
from capture_proxy.turn_ids import turn_token

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


def response_value(
    form: AnswerForm, completion_id: str, model: str, created_at: int, *, status: str, output: list[Json] | None = None
) -> dict[str, Json]:
    """A response object without an end: what a stream begins with. `created_at` is UTC epoch ms."""
    return {
        "id": response_id(completion_id),
        "object": "response",
        "created_at": created_at // 1000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": output or [],
        "usage": None,
        **{name: orjson.Fragment(text) for name, text in form.fields.items()},
    }


def finished_value(form: AnswerForm, reply: Reply, output: list[Json]) -> dict[str, Json]:
    """The response object of a finished reply."""
    value = response_value(
        form, reply.completion_id, reply.model, reply.created_at, status=status(reply), output=output
    )
    if value["status"] == "incomplete":
        value["incomplete_details"] = {"reason": "max_output_tokens"}
    return {**value, "usage": usage(reply)}


def status(reply: Reply) -> Literal["completed", "incomplete"]:
    """`incomplete` for what was cut; tool calls that were complete before the cut stand in it all the same."""
    return "incomplete" if reply.finish_reason == "length" else "completed"


def usage(reply: Reply) -> dict[str, Json]:
    """Token counts."""
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def reasoning_part(form: AnswerForm, text: str) -> dict[str, Json]:
    """A piece of thinking, as the client wants to see it."""
    return {"type": "summary_text" if form.is_summary else "reasoning_text", "text": text}


def reasoning_item(
    form: AnswerForm, completion_id: str, output_index: int, parts: list[Json], status: ItemStatus
) -> dict[str, Json]:
    """Thinking. The encrypted content is a handle to the sampled tokens, and only there when it was asked for."""
    item: dict[str, Json] = {
        "id": item_id("rs", completion_id, output_index),
        "type": "reasoning",
        "summary": parts if form.is_summary else [],
        "status": status,
    }
    if not form.is_summary:
        item["content"] = parts
    if form.is_encrypted:
        item["encrypted_content"] = turn_token(completion_id)
    return item


def text_part(text: str, logprobs: list[Json] | None = None) -> dict[str, Json]:
    """A piece of visible text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def logprobs_value(reply: Reply) -> list[Json]:
    """The visible text's logprobs, for a client that asked for them."""
    return [{**_token(token), "top_logprobs": list(map(_token, token.top))} for token in reply.logprobs or ()]


def _token(token: TokenLogprob) -> dict[str, Json]:
    return {"token": token.token, "bytes": token.data, "logprob": token.logprob}


def message_item(completion_id: str, output_index: int, parts: list[Json], status: ItemStatus) -> dict[str, Json]:
    """Visible text."""
    return {
        "id": item_id("msg", completion_id, output_index),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": parts,
    }


def call_item(
    form: AnswerForm, completion_id: str, output_index: int, call: ToolCall, status: ItemStatus = "completed"
) -> dict[str, Json]:
    """A tool call in the form in which the client defined the tool; while in progress its input is still empty."""
    tool = form.of(call)
    kind, prefix, name = (
        ("custom_tool_call", "ctc", "input") if tool.kind == "custom" else ("function_call", "fc", "arguments")
    )
    item: dict[str, Json] = {
        "id": item_id(prefix, completion_id, output_index),
        "type": kind,
        "status": status,
        "call_id": call.id,
        "name": tool.name,
        name: "" if status == "in_progress" else call_input(form, call),
    }
    if tool.namespace:
        item["namespace"] = tool.namespace
    return item


def call_input(form: AnswerForm, call: ToolCall) -> str:
    """What the tool is given: the sampled JSON text byte for byte, or of a freeform tool the raw text inside it."""
    return freeform_input(call.arguments) if form.of(call).kind == "custom" else call.arguments or "{}"


def encode_whole(reply: Reply) -> bytes:
    """The body of a non-streaming answer."""
    form = AnswerForm.from_json(reply.echo)
    output: list[Json] = []
    if reply.reasoning:
        parts: list[Json] = [reasoning_part(form, reply.reasoning)]
        output.append(reasoning_item(form, reply.completion_id, 0, parts, reasoning_status(reply)))
    if reply.text:
        parts = [text_part(reply.text, logprobs_value(reply))]
        output.append(message_item(reply.completion_id, len(output), parts, status(reply)))
    for call in reply.tool_calls:
        output.append(call_item(form, reply.completion_id, len(output), call))
    return orjson.dumps(finished_value(form, reply, output))


def reasoning_status(reply: Reply) -> Literal["completed", "incomplete"]:
    """Whether a limit cut the thinking: only where nothing followed it. A cut call stands in the text, so there it is the text."""
    return "completed" if reply.text or reply.tool_calls else status(reply)


def encode_count(count: int) -> bytes:
    """The answer to a token-counting request."""
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": count})
