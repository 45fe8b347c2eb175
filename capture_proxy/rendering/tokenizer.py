"""A model directory's tokenizer: the fast tokenizer itself, and the few methods that the `renderers` library asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tokenizers import AddedToken, Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class AddedId:
    """A token outside the learned vocabulary."""

    content: str
    is_special: bool


class ModelTokenizer:
    """The tokenizer of a directory with `tokenizer.json`. Raises FileNotFoundError saying what is missing."""

    def __init__(self, directory: Path) -> None:
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} is missing: give a model directory with tokenizer.json and tokenizer_config.json"
            )
        content = file.read_bytes()
        self.digest = hashlib.sha256(content).hexdigest()
        self.name_or_path = str(directory)
        self.config = read_json(directory / "tokenizer_config.json")
        self.backend = Tokenizer.from_buffer(content)
        self.backend.no_truncation()
        self.backend.no_padding()
        self._add_configured()
        self.is_byte_level = _is_byte_level(orjson.loads(content).get("decoder"))
        self.added = {i: AddedId(t.content, t.special) for i, t in self.backend.get_added_tokens_decoder().items()}
        self.special_tokens = {name: text for name in _SPECIAL if (text := _text(self.config.get(name))) is not None}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        """Text of ids."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def __call__(
        self, text: str, *, add_special_tokens: bool = False, return_offsets_mapping: bool = False
    ) -> dict[str, Any]:
        """Ids, and the characters that each stands for."""
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoding.ids} | ({"offset_mapping": encoding.offsets} if return_offsets_mapping else {})

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        """The id of a token, or of each; None where there is none and no unknown token."""
        if isinstance(tokens, list):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self.backend.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    @property
    def unk_token_id(self) -> int | None:
        """The unknown token's id."""
        return self._special_id("unk_token")

    @property
    def eos_token_id(self) -> int | None:
        """The end token's id."""
        return self._special_id("eos_token")

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        found: int | None = None if text is None else self.backend.token_to_id(text)
        return found

    def _add_configured(self) -> None:
        """Tokens that only tokenizer_config.json knows, in the order of their ids."""
        configured = self.config.get("added_tokens_decoder") or {}
        for _, token in sorted(configured.items(), key=lambda item: int(item[0])):
            if self.backend.token_to_id(token["content"]) is None:
                flags = {
                    name: bool(token.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
                }
                self.backend.add_tokens([AddedToken(token["content"], **flags)])


def chat_template_of(directory: Path, config: dict[str, Any], *, with_tools: bool = True) -> str | None:
    """The directory's chat template: a file of its own wins; of several named ones that for tools, else the default."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    found = config.get("chat_template") or read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = (named.get("tool_use") if with_tools else None) or named.get("default")
    return found if isinstance(found, str) and found else None


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; a missing file or another type is an empty one."""
    if not file.is_file():
        return {}
    value = orjson.loads(file.read_bytes())
    return value if isinstance(value, dict) else {}


def _text(token: Any) -> str | None:
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _is_byte_level(decoder: Any) -> bool:
    """Whether tokens are bytes: then a table decodes them, which is many times faster than the general way."""
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return [_is_byte_level(part) for part in decoder.get("decoders", [])] == [True]
    return decoder.get("type") == "ByteLevel"
