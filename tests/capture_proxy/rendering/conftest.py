"""Renderers around the real Qwen3 tokenizer, loaded once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from capture_proxy.rendering import Renderer
    from capture_proxy.rendering.template import TemplateRenderer


@pytest.fixture(scope="session")
def qwen3_dir() -> Path:
    """Qwen3's tokenizer.json and tokenizer_config.json."""
    from compose.cpu_engine.tiny_model import ensure_tokenizer

    return ensure_tokenizer()


@pytest.fixture(scope="session")
def template(qwen3_dir: Path) -> TemplateRenderer:
    """The model's own chat template."""
    from capture_proxy.rendering import load_renderer
    from capture_proxy.rendering.template import TemplateRenderer

    renderer = load_renderer(qwen3_dir)
    assert isinstance(renderer, TemplateRenderer)
    return renderer


@pytest.fixture(scope="session")
def library(qwen3_dir: Path) -> Renderer:
    """The library's renderer."""
    from capture_proxy.rendering import load_renderer

    return load_renderer(qwen3_dir, family="qwen3")


@pytest.fixture(params=["template", "library"])
def renderer(request: pytest.FixtureRequest) -> Renderer:
    """Both, one after the other: they must behave alike."""
    found: Renderer = request.getfixturevalue(request.param)
    return found
