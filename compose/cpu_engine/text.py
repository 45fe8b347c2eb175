"""The tokenizer, and text that grows token by token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from compose.cpu_engine.model import ModelError

REPLACEMENT = "\ufffd"  # what an unfinished UTF-8 sequence decodes to


class Tokenizer:
    """A Hugging Face tokenizer with its chat template."""

    def __init__(self, path: Path) -> None:
        """Load from a model directory; raises `ModelError` when it has no tokenizer."""
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # short texts, and other work on the same cores
        from transformers import AutoTokenizer

        self.path = path
        try:
            self._inner: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as exc:
            raise ModelError(f"{path} has no usable tokenizer: {exc}") from exc
        self.eos_id: int | None = self._inner.eos_token_id

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of `text`; special tokens written in it are parsed as such."""
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """Text of `ids`."""
        return str(self._inner.decode(ids, skip_special_tokens=skip_special_tokens))

    def render(self, messages: list[Any], tools: list[Any] | None, options: dict[str, Any]) -> str:
        """The chat template's text; raises ValueError with the template's complaint."""
        from jinja2 import TemplateError

        try:
            return str(self._inner.apply_chat_template(messages, tools=tools, tokenize=False, **options))
        except (TemplateError, TypeError, KeyError) as exc:
            raise ValueError(f"the chat template refuses these messages: {exc}") from exc


class GrowingText:
    """Text of a growing list of ids; an unfinished character is held back until it is whole or the reply ends."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._context = 0  # from here on ids are decoded again, so that joins between tokens come out right
        self._done = 0  # ids whose text is in `text` for good
        self._committed = ""
        self.text = ""

    def grow(self, ids: list[int]) -> str:
        """Take all ids so far and return the text so far."""
        before = self._decode(ids[self._context : self._done])
        after = self._decode(ids[self._context :])
        fresh = after[len(before) :]
        if fresh.endswith(REPLACEMENT):
            self.text = self._committed + fresh.rstrip(REPLACEMENT)
        else:
            self._committed += fresh
            self.text = self._committed
            self._context, self._done = self._done, len(ids)
        return self.text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip) if ids else ""


def held_back(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
