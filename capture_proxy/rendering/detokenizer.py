"""Ids to text, one at a time: never half a character, never a lost one at the end."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import Any, Protocol


class Detokenizer(Protocol):
    """Incremental decoding of one output."""

    def step(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete or for a hidden special token."""
        ...

    def flush(self) -> str:
        """What is left at the end: an incomplete character as U+FFFD."""
        ...


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, inverted: the alphabet of every byte-level tokenizer."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + position): byte for position, byte in enumerate(others)})
    return table


class ByteTable:
    """The bytes of each token of a byte-level tokenizer, filled in as tokens are seen; shared by all outputs of a model."""

    _BYTE_OF_CHAR = _byte_of_char()

    def __init__(self, tokenizer: Any, *, hidden_ids: Collection[int], added: dict[int, str]) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = frozenset(hidden_ids)
        self._added = added
        self._bytes: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._make(token_id)
        return found

    def _make(self, token_id: int) -> bytes:
        if token_id in self._hidden_ids:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:  # an id above the vocabulary: engines pad their embedding tables
            return b""
        try:
            return bytes([self._BYTE_OF_CHAR[char] for char in token])
        except KeyError:
            return bytes(token.encode())


class ByteDetokenizer:
    """For byte-level tokenizers: a table look-up and an incremental UTF-8 decoder."""

    __slots__ = ("_decode", "_table")

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def step(self, token_id: int) -> str:
        """The text that this token completes."""
        return self._decode(self._table[token_id])

    def flush(self) -> str:
        """What is left at the end."""
        return self._decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window before and with the new token and takes the difference."""

    __slots__ = ("_decode", "_ids", "_prefix", "_read")

    def __init__(self, decode: Any) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0

    def step(self, token_id: int) -> str:
        """The text that this token completes."""
        self._ids.append(token_id)
        before, now = self._window()
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        """What is left at the end."""
        before, now = self._window()
        self._read = len(self._ids)
        return now[len(before) :]

    def _window(self) -> tuple[str, str]:
        return self._decode(self._ids[self._prefix : self._read]), self._decode(self._ids[self._prefix :])
