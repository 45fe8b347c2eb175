"""Builds the renderer of a model directory, without the network."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from capture_proxy.rendering.base import Renderer
from capture_proxy.rendering.library import LibraryRenderer, family_of
from capture_proxy.rendering.template import TemplateRenderer


def load_renderer(model_dir: str | Path, *, family: str | None = None) -> Renderer:
    """The renderer for a directory with `tokenizer.json` and a chat template.

    `family` names one of the library's formats (for example `qwen3`); left out, it is guessed from `config.json`. The library is
    used only where it renders a probe conversation to the same ids as the model's own template. Takes seconds (transformers is
    imported here): call it in a thread. Raises FileNotFoundError or ValueError saying what is missing.
    """
    directory = Path(model_dir)
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing: give a model directory with tokenizer.json and tokenizer_config.json"
        )
    content = file.read_bytes()
    tokenizer = _load_tokenizer(directory)
    if not tokenizer.chat_template:
        raise ValueError(
            f"{directory} has no chat template: add chat_template.jinja or the field in tokenizer_config.json"
        )
    template = TemplateRenderer(
        tokenizer,
        tokenizer_digest=hashlib.sha256(content).hexdigest(),
        stop_token_ids=_stop_ids(directory, tokenizer),
        is_byte_level=_is_byte_level(orjson.loads(content).get("decoder")),
    )
    wanted = family or family_of(_read_json(directory / "config.json"))
    if wanted is None:
        return template
    library = LibraryRenderer(template, wanted)
    if library.agrees_with_template():
        return library
    if family is not None:
        raise ValueError(
            f"the {family!r} format doesn't render like the chat template in {directory}: leave the family out to use the template"
        )
    return template


def _load_tokenizer(directory: Path) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        return AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError):  # no config.json, or a class that this version doesn't know
        return PreTrainedTokenizerFast.from_pretrained(str(directory), local_files_only=True)


def _stop_ids(directory: Path, tokenizer: Any) -> list[int]:
    """The ids that end a generation: of generation_config.json, config.json and the tokenizer."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        sent = _read_json(directory / name).get("eos_token_id")
        ids += [sent] if isinstance(sent, int) else sent if isinstance(sent, list) else []
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return list(dict.fromkeys(ids))


def _is_byte_level(decoder: Any) -> bool:
    """Whether tokens are bytes: then a table decodes them, which is many times faster than the general way."""
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return [_is_byte_level(part) for part in decoder.get("decoders", [])] == [True]
    return decoder.get("type") == "ByteLevel"


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    value = orjson.loads(file.read_bytes())
    return value if isinstance(value, dict) else {}
