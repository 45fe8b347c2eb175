"""Clients of inference engines behind one seam, `Engine`: token ids in, token ids and logprobs out as they are sampled."""

from __future__ import annotations

from capture_proxy.engines.base import (
    Engine,
    EngineChunk,
    EngineFinish,
    EngineInfo,
    EngineStream,
    GenerateRequest,
    WeightSpan,
)
from capture_proxy.engines.sglang import SglangEngine

__all__ = [
    "Engine",
    "EngineChunk",
    "EngineFinish",
    "EngineInfo",
    "EngineStream",
    "GenerateRequest",
    "SglangEngine",
    "WeightSpan",
]
