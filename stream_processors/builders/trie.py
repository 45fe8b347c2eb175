"""A radix tree over token sequences: every prompt and reply of a lease is a place in it, and a shared beginning stands once.

Only what is new is read: a call that goes on from an earlier one starts at that one's place. The shape depends on the set
of sequences alone, not on the order in which they came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from schemas.arrays import ID_DTYPE

if TYPE_CHECKING:
    from hashlib import _Hash

ID_BYTES: Final = 4
"""Token ids are little-endian int32: sequences are compared as bytes, and 4 bytes are one token."""


class Place:
    """The end of one sequence: `data` are the packed ids since the place `up`, `depth` is the whole length in bytes.

    A place stays valid when the tree grows: a split puts a new place above it.
    """

    __slots__ = ("_hasher", "children", "data", "depth", "is_negative", "up")

    def __init__(self, up: Place | None, data: bytes, *, is_negative: bool = False) -> None:
        self.up = up
        self.data = data
        self.depth: int = len(data) + (up.depth if up is not None else 0)
        self.children: dict[bytes, Place] = {}
        self.is_negative = is_negative
        """Whether an id below 0 stands anywhere on the way here."""
        self._hasher: _Hash | None = None

    def upwards(self) -> Iterator[Place]:
        """This place and those above it, up to the root."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.up

    def digest(self) -> str:
        """SHA-256 (hex) of the packed ids from the root to here; hashes only what no earlier digest on the way covers."""
        if self._hasher is not None:
            return self._hasher.hexdigest()
        way: list[Place] = []
        hasher: _Hash | None = None
        for place in self.upwards():
            if place._hasher is not None:  # noqa: SLF001 - another object of this class
                hasher = place._hasher.copy()  # noqa: SLF001
                break
            way.append(place)
        hasher = hashlib.sha256() if hasher is None else hasher
        for place in reversed(way):
            hasher.update(place.data)
        self._hasher = hasher
        return hasher.hexdigest()

    def since(self, depth: int) -> bytes:
        """The packed ids between `depth` bytes from the root (at most this place's depth) and here."""
        parts: list[bytes] = []
        for place in self.upwards():
            start = place.depth - len(place.data)
            if start <= depth:
                parts.append(place.data[depth - start :])
                break
            parts.append(place.data)
        return parts[0] if len(parts) == 1 else b"".join(reversed(parts))

    def has_above(self, other: Place) -> bool:
        """Whether `other` is this place or stands above it: whether its sequence is a prefix of this one's."""
        for place in self.upwards():
            if place.depth <= other.depth:
                return place is other
        return False


class TokenTrie:
    """The tree; it only grows."""

    def __init__(self) -> None:
        self.root = Place(None, b"")

    def insert(self, start: Place, ids: bytes) -> Place:
        """The place of `start`'s sequence followed by `ids` (packed, a whole number of tokens)."""
        place, at = start, 0
        while at < len(ids):
            child = place.children.get(ids[at : at + ID_BYTES])
            if child is None:
                return self._hang(place, ids[at:] if at else ids)
            common = _common(child.data, ids, at)
            place = child if common == len(child.data) else self._split(child, common)
            at += common
        return place

    def at_depth(self, below: Place, depth: int) -> Place:
        """The place `depth` bytes from the root on the way to `below`, whose depth isn't lower."""
        if depth == below.depth:
            return below
        for place in below.upwards():
            start = place.depth - len(place.data)
            if depth == place.depth:
                return place
            if start < depth:
                return self._split(place, depth - start)
        return self.root

    def _hang(self, up: Place, data: bytes) -> Place:
        place = Place(up, data, is_negative=up.is_negative or has_negative(data))
        up.children[data[:ID_BYTES]] = place
        return place

    def _split(self, place: Place, length: int) -> Place:
        """Put a new place into the way to `place`, `length` bytes behind the one above it."""
        up = place.up
        assert up is not None
        head, tail = place.data[:length], place.data[length:]
        upper = self._hang(up, head)
        upper.children[tail[:ID_BYTES]] = place
        place.up, place.data = upper, tail
        return upper


def _common(edge: bytes, ids: bytes, at: int) -> int:
    """How many bytes, in whole tokens, `edge` and `ids[at:]` have in common."""
    if ids.startswith(edge, at):
        return len(edge)
    length = min(len(edge), len(ids) - at)
    if ids[at : at + length] == edge[:length]:
        return length
    one = np.frombuffer(edge, ID_DTYPE, length // ID_BYTES)
    other = np.frombuffer(ids, ID_DTYPE, length // ID_BYTES, offset=at)
    return int(np.argmax(one != other)) * ID_BYTES


def has_negative(ids: bytes) -> bool:
    """Whether one of these packed ids is below 0: whether the highest bit of any last byte is set."""
    return not ids[ID_BYTES - 1 :: ID_BYTES].isascii()
