"""Chat Completions answers as one body."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from capture_proxy.dialects.base import ModelEntry
from capture_proxy.dialects.openai_chat.tools import call_value, function_value, is_legacy
from capture_proxy.reply import Json, Reply, TokenLogprob


def reply_id(completion_id: str) -> str:
    """The id a client sees."""
    return f"chatcmpl-{completion_id}"


def finish_reason(reply: Reply) -> str:
    """`tool_calls` whenever there are calls and nothing was cut, whatever the engine called it."""
    if not reply.tool_calls or reply.finish_reason == "length":
        return reply.finish_reason
    return "function_call" if is_legacy(reply) else "tool_calls"


def usage(reply: Reply) -> dict[str, Json]:
    """Token counts."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }


def logprobs_value(reply: Reply) -> dict[str, Json] | None:
    """The visible text's logprobs, for a client that asked for them."""
    if reply.logprobs is None:
        return None
    content = [{**_token(token), "top_logprobs": list(map(_token, token.top))} for token in reply.logprobs]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Json]:
    return {"token": token.token, "logprob": token.logprob, "bytes": token.data}


def encode_whole(reply: Reply) -> bytes:
    """The body of a non-streaming answer."""
    message: dict[str, Json] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["content"] = reply.text or None
        if is_legacy(reply):
            message["function_call"] = function_value(reply.tool_calls[0])
        else:
            message["tool_calls"] = [call_value(call, reply.echo) for call in reply.tool_calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs_value(reply),
        "finish_reason": finish_reason(reply),
    }
    return orjson.dumps(
        {
            "id": reply_id(reply.completion_id),
            "object": "chat.completion",
            "created": reply.created_at // 1000,
            "model": reply.model,
            "choices": [choice],
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
