"""The real Qwen3 tokenizer and template for the lineage's tests."""

from __future__ import annotations

from tests.capture_proxy.rendering.conftest import library, qwen3_dir, renderer, template

__all__ = ["library", "qwen3_dir", "renderer", "template"]
