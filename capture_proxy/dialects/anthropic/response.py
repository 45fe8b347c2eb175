"""Messages answers as one body."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import orjson

from capture_proxy.dialects.base import ModelEntry
from capture_proxy.reply import Json, Reply, ToolCall
from capture_proxy.turn_ids import turn_token


def reply_id(completion_id: str) -> str:
    """The id a client sees."""
    return f"msg_{completion_id.replace('-', '')}"


def signature(completion_id: str) -> str:
    """The opaque mark of a thinking block. Clients echo it verbatim, but only if it isn't empty; it names the call."""
    return turn_token(completion_id)


def stop_reason(reply: Reply) -> str:
    """`tool_use` whenever there are calls and nothing was cut, whatever the engine called it."""
    if reply.finish_reason == "length":
        return "max_tokens"
    if reply.tool_calls:
        return "tool_use"
    return "stop_sequence" if reply.stop_sequence is not None else "end_turn"


def stop_sequence(reply: Reply) -> str | None:
    """The matched stop sequence, only where it is the reason for the stop."""
    return reply.stop_sequence if stop_reason(reply) == "stop_sequence" else None


def usage(prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> dict[str, Json]:
    """Token counts as the vendor splits them: what the engine had in its cache isn't part of `input_tokens`; clients add the two up."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
    }


def reply_usage(reply: Reply) -> dict[str, Json]:
    """The token counts of a finished reply."""
    return usage(reply.prompt_tokens, reply.completion_tokens, min(reply.cached_tokens, reply.prompt_tokens))


def tool_use(call: ToolCall) -> dict[str, Json]:
    """A tool call as a content block; the input is the sampled JSON text, byte for byte."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": orjson.Fragment(call.arguments or "{}")}


def encode_whole(reply: Reply) -> bytes:
    """The body of a non-streaming answer."""
    content: list[Json] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": signature(reply.completion_id)})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    content += [tool_use(call) for call in reply.tool_calls]
    return orjson.dumps(
        {
            "id": reply_id(reply.completion_id),
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": content,
            "stop_reason": stop_reason(reply),
            "stop_sequence": stop_sequence(reply),
            "usage": reply_usage(reply),
        }
    )


def encode_count(count: int) -> bytes:
    """The answer to a token-counting request."""
    return orjson.dumps({"input_tokens": count})


def encode_model(model: ModelEntry) -> bytes:
    """One model."""
    return orjson.dumps(_model(model))


def encode_models(models: Sequence[ModelEntry]) -> bytes:
    """The model list, in one page."""
    return orjson.dumps(
        {
            "data": [_model(model) for model in models],
            "has_more": False,
            "first_id": models[0].id if models else None,
            "last_id": models[-1].id if models else None,
        }
    )


def _model(model: ModelEntry) -> dict[str, Json]:
    created = datetime.fromtimestamp(model.created_at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": model.id, "display_name": model.id, "created_at": created}
