"""Which client speaks to which kind of engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from capture_proxy.engines.base import Engine
from capture_proxy.engines.chat import OpenAiChatEngine, VllmChatEngine
from capture_proxy.engines.sglang import SglangEngine
from capture_proxy.engines.vllm import VllmEngine

_CLIENTS: Final[Mapping[str, Callable[..., Engine]]] = MappingProxyType(
    {
        "sglang": SglangEngine,
        "cpu": SglangEngine,
        "vllm": VllmEngine,
        "vllm_chat": VllmChatEngine,
        "openai": OpenAiChatEngine,
    }
)
ENGINE_KINDS: Final = tuple(_CLIENTS)
"""What `engine_kind` on the timeline and in the settings may say."""


def make_engine(kind: str, url: str, api_key: str | None = None) -> Engine:
    """The client for an engine of a kind. Raises ValueError for one that isn't known."""
    client = _CLIENTS.get(kind)
    if client is None:
        raise ValueError(f"unknown engine kind {kind!r} for {url}: this proxy speaks {', '.join(ENGINE_KINDS)}")
    return client(url, api_key=api_key)
