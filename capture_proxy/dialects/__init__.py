"""The vendor APIs that harnesses speak, as pure functions: bytes in, `ChatRequest` out; `ReplyEvent`s in, bytes out."""

from __future__ import annotations

from capture_proxy.dialects.anthropic import DIALECT as ANTHROPIC
from capture_proxy.dialects.base import Dialect, ModelEntry, Route, StreamEncoder
from capture_proxy.dialects.detect import detect
from capture_proxy.dialects.google import DIALECT as GOOGLE
from capture_proxy.dialects.openai_chat import DIALECT as OPENAI_CHAT
from capture_proxy.dialects.openai_responses import DIALECT as OPENAI_RESPONSES

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, GOOGLE)}
"""Every dialect by its name, as `detect` names them."""

__all__ = ["DIALECTS", "Dialect", "ModelEntry", "Route", "StreamEncoder", "detect"]
