"""Conversations to prompt ids, and sampled ids back to a reply: the proxy renders, so that the engine sees exactly our tokens."""

from __future__ import annotations

from capture_proxy.rendering.base import ParsedCall, ParsedReply, Renderer, ReplyParser
from capture_proxy.rendering.load import load_renderer

__all__ = ["ParsedCall", "ParsedReply", "Renderer", "ReplyParser", "load_renderer"]
