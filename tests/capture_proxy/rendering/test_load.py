"""Building renderers from directories."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from capture_proxy.rendering import load_renderer
from capture_proxy.rendering.library import LibraryRenderer, family_of
from capture_proxy.rendering.template import TemplateRenderer
from capture_proxy.rendering.tokenizer import _is_byte_level


@pytest.fixture
def model_dir(qwen3_dir: Path, tmp_path: Path) -> Path:
    """A model directory of its own with a config, which may be changed."""
    shutil.copytree(qwen3_dir, tmp_path / "model")
    config = {"model_type": "qwen3", "eos_token_id": 151_645}
    (tmp_path / "model" / "config.json").write_bytes(orjson.dumps(config))
    (tmp_path / "model" / "generation_config.json").write_bytes(orjson.dumps({"eos_token_id": [151_645, 151_643]}))
    return tmp_path / "model"


def test_the_library_is_used_where_it_is_named(model_dir: Path) -> None:
    """The library renders where it agrees with the model's template; stop ids come from the directory."""
    renderer = load_renderer(model_dir, family="qwen3")
    assert isinstance(renderer, LibraryRenderer)
    assert renderer.stop_token_ids == (151_645, 151_643)
    plain = load_renderer(model_dir)
    assert isinstance(plain, TemplateRenderer)
    assert plain.stop_token_ids == renderer.stop_token_ids


def test_families_are_guessed_by_type_and_template() -> None:
    """Only where the library is needed: its marks must stand in the template."""
    assert family_of("gpt_oss", "… <|channel|> …") == "gpt-oss"
    assert family_of("llama", "<|start_header_id|>user") == "llama-3"
    assert family_of("llama", "<|im_start|>user") is None
    assert family_of("qwen3", "<tool_call>") is None
    assert family_of(None, "") is None


def test_a_changed_template_is_obeyed(model_dir: Path) -> None:
    """A fine-tune with its own template is not rendered by the library; asked for by name, that is an error."""
    file = model_dir / "tokenizer_config.json"
    config = orjson.loads(file.read_bytes())
    config["chat_template"] = config["chat_template"].replace("# Tools", "# Functions")
    file.write_bytes(orjson.dumps(config))
    assert isinstance(load_renderer(model_dir), TemplateRenderer)
    with pytest.raises(ValueError, match="doesn't render like the chat template"):
        load_renderer(model_dir, family="qwen3")


def test_missing_parts_are_named(model_dir: Path, tmp_path: Path) -> None:
    """The error says which file to give."""
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_renderer(tmp_path / "nothing")
    file = model_dir / "tokenizer_config.json"
    config = orjson.loads(file.read_bytes())
    del config["chat_template"]
    file.write_bytes(orjson.dumps(config))
    with pytest.raises(ValueError, match="no chat template"):
        load_renderer(model_dir)


def test_byte_level_tokenizers_are_recognised() -> None:
    """Only pure byte-level decoders may use the byte table."""
    assert _is_byte_level({"type": "ByteLevel"})
    assert _is_byte_level({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})
    assert not _is_byte_level(
        {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    )
    assert not _is_byte_level(None)
