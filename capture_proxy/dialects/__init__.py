"""The vendor APIs that harnesses speak, as pure functions: bytes in, `ChatRequest` out; `ReplyEvent`s in, bytes out."""

from __future__ import annotations

from capture_proxy.dialects.base import Dialect, ModelEntry, Route, StreamEncoder
from capture_proxy.dialects.detect import detect

__all__ = ["Dialect", "ModelEntry", "Route", "StreamEncoder", "detect"]
