"""Remembers keys and values of finished sequences and prompts, and finds the longest common prefix of a new prompt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compose.cpu_engine.ragged import KeyValuePrefix

BLOCK_TOKENS = 64  # prefixes are indexed at multiples of this; shorter common prefixes are not worth a copy

Ids = npt.NDArray[np.int32]


@dataclass(eq=False, slots=True)
class _Entry:
    ids: Ids
    stored: KeyValuePrefix
    keys: list[int]


class PrefixCache:
    """Least-recently-used store bounded by `limit_tokens`. Not thread-safe: the scheduler's loop owns it."""

    def __init__(self, limit_tokens: int) -> None:
        self._limit_tokens = limit_tokens
        self._entries: OrderedDict[int, _Entry] = OrderedDict()  # by id(); the last is the most recently used
        self._by_block: dict[int, _Entry] = {}
        self.tokens = 0
        """Tokens held now, counted per entry."""

    def find(self, ids: list[int]) -> KeyValuePrefix | None:
        """The longest stored common prefix of `ids`, but never all of it: the last token must be computed."""
        wanted = np.asarray(ids, dtype=np.int32)
        best: _Entry | None = None
        for key in _block_keys(wanted):
            entry = self._by_block.get(key)
            if entry is None:
                break
            best = entry
        if best is None:
            return None
        limit = min(len(best.ids), len(wanted) - 1)
        differs = np.flatnonzero(best.ids[:limit] != wanted[:limit])  # exact, so a collision of hashes is harmless
        length = int(differs[0]) if len(differs) else limit
        if length == 0:
            return None
        self._entries.move_to_end(id(best))
        return best.stored.cut(length)

    def add(self, ids: list[int], stored: KeyValuePrefix) -> None:
        """Remember a sequence; entries that are a prefix of it are dropped, the oldest go when the bound is passed."""
        kept = np.asarray(ids[: stored.length], dtype=np.int32)
        keys = list(_block_keys(kept))
        if not keys or len(kept) > self._limit_tokens:
            return
        covered = {id(entry): entry for key in keys if (entry := self._by_block.get(key)) is not None}
        for entry in covered.values():
            if len(entry.ids) <= len(kept) and np.array_equal(entry.ids, kept[: len(entry.ids)]):
                self._drop(entry)
            elif len(entry.ids) > len(kept) and np.array_equal(entry.ids[: len(kept)], kept):
                return  # a longer one already has all of it
        fresh = _Entry(kept, stored, keys)
        self._entries[id(fresh)] = fresh
        self._by_block.update(dict.fromkeys(keys, fresh))
        self.tokens += len(kept)
        while self.tokens > self._limit_tokens:
            self._drop(next(iter(self._entries.values())))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._by_block.clear()
        self.tokens = 0

    def _drop(self, entry: _Entry) -> None:
        del self._entries[id(entry)]
        self.tokens -= len(entry.ids)
        for key in entry.keys:
            if self._by_block.get(key) is entry:
                del self._by_block[key]


def _block_keys(ids: Ids) -> Iterator[int]:
    """One hash for each whole block, of everything up to the block's end."""
    key = 0
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        key = hash((key, ids[end - BLOCK_TOKENS : end].tobytes()))
        yield key
