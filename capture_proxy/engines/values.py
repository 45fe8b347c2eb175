"""Checks of single values that come from an engine, the same for every interface. Pure."""

from __future__ import annotations

from typing import Any, Final

from capture_proxy.engines.base import EngineFinishReason
from capture_proxy.reply import ProxyError

_MAX_ID: Final = 2**31 - 1
"""Token ids travel as int32."""

_ABORTS: Final = frozenset({"abort", "aborted", "error", "cancelled"})


def checked_ids(ids: Any) -> list[int]:
    """Token ids. Raises ProxyError for anything that can't be one."""
    if not isinstance(ids, list) or not all(type(token_id) is int and 0 <= token_id <= _MAX_ID for token_id in ids):
        raise ProxyError("engine_error", "the engine sent output ids that are no token ids")
    return ids


def are_logprobs(values: list[Any]) -> list[Any]:
    """Numbers, or null for a logprob that is none. Raises ProxyError for anything else."""
    if not all(value is None or isinstance(value, int | float) for value in values):
        raise ProxyError("engine_error", "the engine sent logprobs that are no numbers")
    return values


def finish_reason(told: str) -> EngineFinishReason:
    """How a generation ended, from an OpenAI-like finish reason: tool calls are a stop."""
    return "length" if told in ("length", "max_tokens") else "abort" if told in _ABORTS else "stop"
