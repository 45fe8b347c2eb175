"""Clients of inference engines behind one seam, `Engine`: tokens (or messages) in, tokens and logprobs out as they are sampled."""

from __future__ import annotations

from capture_proxy.engines.base import (
    ChatPrompt,
    Engine,
    EngineChunk,
    EngineFinish,
    EngineInfo,
    EngineReply,
    EngineStream,
    GenerateRequest,
    WeightSpan,
)
from capture_proxy.engines.chat import OpenAiChatEngine, VllmChatEngine
from capture_proxy.engines.make import ENGINE_KINDS, make_engine
from capture_proxy.engines.sglang import SglangEngine
from capture_proxy.engines.vllm import VllmEngine

__all__ = [
    "ENGINE_KINDS",
    "ChatPrompt",
    "Engine",
    "EngineChunk",
    "EngineFinish",
    "EngineInfo",
    "EngineReply",
    "EngineStream",
    "GenerateRequest",
    "OpenAiChatEngine",
    "SglangEngine",
    "VllmChatEngine",
    "VllmEngine",
    "WeightSpan",
    "make_engine",
]
