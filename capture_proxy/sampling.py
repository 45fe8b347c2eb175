"""Which sampling a call really gets: the task's word over the request's, within what the context has room for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capture_proxy.reply import ProxyError


def effective_sampling(
    requested: Mapping[str, Any],
    overrides: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    prompt_tokens: int,
    context_length: int | None,
    default_max_tokens: int,
    stop_token_ids: Sequence[int],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The sampling for the engine, and notes on what was changed.

    Raises ProxyError(context_overflow) when the prompt leaves no room for a single token.
    """
    sampling = {name: value for name, value in {**defaults, **requested, **overrides}.items() if value is not None}
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
        )
    wanted = int(sampling.get("max_tokens", default_max_tokens))
    if room is not None and wanted > room:
        notes.append(f"max_tokens: {wanted} cut to the {room} tokens that the context has room for")
        wanted = room
    sampling["max_tokens"] = wanted
    sampling["stop_token_ids"] = sorted({*sampling.get("stop_token_ids", ()), *stop_token_ids})
    return sampling, tuple(notes)
