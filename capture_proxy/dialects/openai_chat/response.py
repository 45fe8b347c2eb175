"""Chat Completions answers as one body."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from capture_proxy.dialects.base import ModelEntry
from capture_proxy.reply import Json, Reply, ToolCall


def reply_id(completion_id: str) -> str:
    """The id a client sees."""
    return f"chatcmpl-{completion_id}"


def finish_reason(reply: Reply) -> str:
    """`tool_calls` whenever there are calls and nothing was cut, whatever the engine called it."""
    return "tool_calls" if reply.tool_calls and reply.finish_reason != "length" else reply.finish_reason


def usage(reply: Reply) -> dict[str, Json]:
    """Token counts."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }


def tool_call_value(call: ToolCall) -> dict[str, Json]:
    """A tool call as it stands in a message."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def encode_whole(reply: Reply) -> bytes:
    """The body of a non-streaming answer."""
    message: dict[str, Json] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["content"] = reply.text or None
        message["tool_calls"] = [tool_call_value(call) for call in reply.tool_calls]
    return orjson.dumps(
        {
            "id": reply_id(reply.completion_id),
            "object": "chat.completion",
            "created": reply.created_at // 1000,
            "model": reply.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}],
            "usage": usage(reply),
        }
    )


def encode_count(count: int) -> bytes:
    """A token count; the vendor has no such endpoint, this is for our own use."""
    return orjson.dumps({"prompt_tokens": count})


def encode_model(model: ModelEntry) -> bytes:
    """One model."""
    return orjson.dumps(_model(model))


def encode_models(models: Sequence[ModelEntry]) -> bytes:
    """The model list."""
    return orjson.dumps({"object": "list", "data": [_model(model) for model in models]})


def _model(model: ModelEntry) -> dict[str, Json]:
    value = {"id": model.id, "object": "model", "created": model.created_at // 1000, "owned_by": "polynya"}
    return value if model.context_length is None else {**value, "context_length": model.context_length}
