"""Builds the renderer of a model directory, without the network."""

from __future__ import annotations

from pathlib import Path

from capture_proxy.rendering.base import Renderer
from capture_proxy.rendering.jinja import ChatTemplate
from capture_proxy.rendering.library import LibraryRenderer, family_of
from capture_proxy.rendering.template import TemplateRenderer
from capture_proxy.rendering.tokenizer import ModelTokenizer, chat_template_of, read_json


def load_renderer(model_dir: str | Path, *, family: str | None = None) -> Renderer:
    """The renderer for a directory with `tokenizer.json` and a chat template.

    `family` names one of the library's formats (for example `qwen3`); left out, it is guessed where only the library can parse the
    format. The library is used only where it renders a probe conversation to the same ids as the model's own template. Takes a
    second, with the library several: call it in a thread. Raises FileNotFoundError or ValueError saying what is missing.
    """
    directory = Path(model_dir)
    tokenizer = ModelTokenizer(directory)
    source = chat_template_of(directory, tokenizer.config)
    if source is None:
        raise ValueError(
            f"{directory} has no chat template: add chat_template.jinja or the field in tokenizer_config.json"
        )
    template = TemplateRenderer(
        tokenizer,
        ChatTemplate(source, tokenizer.special_tokens),
        stop_token_ids=_stop_ids(directory, tokenizer),
        vocab_size=_vocab_size(directory),
    )
    wanted = family or family_of(read_json(directory / "config.json").get("model_type"), source)
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


def _vocab_size(directory: Path) -> int:
    """The rows of the model's embedding table (0: unknown): tokenizers have fewer ids, and a model can sample the padding too."""
    config = read_json(directory / "config.json")
    nested = config.get("text_config")  # of a model that also sees
    size = config.get("vocab_size") or (nested.get("vocab_size") if isinstance(nested, dict) else None)
    return size if isinstance(size, int) else 0


def _stop_ids(directory: Path, tokenizer: ModelTokenizer) -> list[int]:
    """The ids that end a generation: of generation_config.json, config.json and the tokenizer."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        sent = read_json(directory / name).get("eos_token_id")
        ids += [sent] if isinstance(sent, int) else sent if isinstance(sent, list) else []
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return list(dict.fromkeys(ids))
