"""generateContent answers as one body, and the small endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import orjson

from capture_proxy.dialects.base import ModelEntry
from capture_proxy.reply import Json, Reply, TokenLogprob, ToolCall
from capture_proxy.turn_ids import turn_token


def reply_id(completion_id: str) -> str:
    """The id a client sees."""
    return completion_id.replace("-", "")


def create_time(created_at: int) -> str:
    """UTC epoch ms as the vendor writes times."""
    return datetime.fromtimestamp(created_at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def finish_reason(reply: Reply) -> str:
    """There is no reason for tool calls: they end with STOP."""
    return "MAX_TOKENS" if reply.finish_reason == "length" else "STOP"


def usage(reply: Reply) -> dict[str, Json]:
    """Token counts; thoughts aren't candidates' tokens, the total holds both."""
    value: dict[str, Json] = {
        "promptTokenCount": reply.prompt_tokens,
        "candidatesTokenCount": max(0, reply.completion_tokens - reply.reasoning_tokens),
        "totalTokenCount": reply.prompt_tokens + reply.completion_tokens,
        "thoughtsTokenCount": reply.reasoning_tokens,
    }
    if reply.cached_tokens:
        value["cachedContentTokenCount"] = reply.cached_tokens
    return value


def call_part(call: ToolCall, signature: str) -> dict[str, Json]:
    """A whole call; the arguments are the sampled JSON text, on one line, since the object stands in an event's line.

    A raw line break in JSON text is space between tokens: inside strings it is escaped.
    """
    arguments = (call.arguments or "{}").replace("\r", " ").replace("\n", " ")
    value = {"id": call.id, "name": call.name, "args": orjson.Fragment(arguments)}
    return {"functionCall": value, "thoughtSignature": signature}


def candidate(reply: Reply, parts: list[Json]) -> dict[str, Json]:
    """The only candidate, finished."""
    value: dict[str, Json] = {
        "content": {"parts": parts, "role": "model"},
        "finishReason": finish_reason(reply),
        "index": 0,
    }
    if reply.logprobs is not None:
        value["logprobsResult"] = _logprobs(reply.logprobs)
        if reply.logprobs:
            value["avgLogprobs"] = sum(token.logprob for token in reply.logprobs) / len(reply.logprobs)
    return value


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Json]:
    def pair(token: TokenLogprob) -> dict[str, Json]:
        return {"token": token.token, "logProbability": token.logprob}

    return {
        "chosenCandidates": [pair(token) for token in tokens],
        "topCandidates": [{"candidates": [pair(other) for other in token.top]} for token in tokens],
    }


def encode_whole(reply: Reply) -> bytes:
    """The body of a non-streaming answer. Thoughts only for a client that asked for them; never without any part."""
    signature = turn_token(reply.completion_id)
    parts: list[Json] = []
    if reply.reasoning and reply.echo.get("thoughts"):
        parts.append({"text": reply.reasoning, "thought": True, "thoughtSignature": signature})
    if reply.text or not reply.tool_calls:
        parts.append({"text": reply.text, "thoughtSignature": signature})
    parts += [call_part(call, signature) for call in reply.tool_calls]
    return orjson.dumps(
        {
            "candidates": [candidate(reply, parts)],
            "usageMetadata": usage(reply),
            "modelVersion": reply.model,
            "createTime": create_time(reply.created_at),
            "responseId": reply_id(reply.completion_id),
        }
    )


def encode_count(count: int) -> bytes:
    """The answer to a token-counting request."""
    return orjson.dumps({"totalTokens": count})


def encode_model(model: ModelEntry) -> bytes:
    """One model."""
    return orjson.dumps(_model(model))


def encode_models(models: Sequence[ModelEntry]) -> bytes:
    """The model list, in one page."""
    return orjson.dumps({"models": [_model(model) for model in models]})


def _model(model: ModelEntry) -> dict[str, Json]:
    value: dict[str, Json] = {
        "name": f"models/{model.id}",
        "baseModelId": model.id,
        "version": "1",
        "displayName": model.id,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    if model.context_length is not None:
        value |= {"inputTokenLimit": model.context_length, "outputTokenLimit": model.context_length}
    return value
