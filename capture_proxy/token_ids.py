"""A long prompt's ids without a Python object for each: 60,000 of them take milliseconds to make, and nobody looks at them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import orjson
from numpy.typing import NDArray

from schemas import arrays


class TokenIds(Sequence[int]):
    """Token ids as packed little-endian int32; a sequence of ints to those who want one."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    @property
    def array(self) -> NDArray[np.int32]:
        """The same ids, read-only."""
        return arrays.unpack_ids(self.packed)

    def __len__(self) -> int:
        return len(self.packed) // arrays.ID_DTYPE.itemsize

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        found = self.array[at]
        return found.tolist() if isinstance(at, slice) else int(found)

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self.packed == other.packed
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and self.array.tolist() == list(other)

    def __hash__(self) -> int:
        return hash(self.packed)

    def __repr__(self) -> str:
        return f"TokenIds({self.array.tolist()!r})"


def packed_ids(ids: Sequence[int]) -> bytes:
    """Ids of either kind, packed."""
    return ids.packed if isinstance(ids, TokenIds) else arrays.pack_ids(ids)


def dump_json(value: Any) -> bytes:
    """JSON of a request with ids of either kind in it."""
    return orjson.dumps(value, default=_as_array, option=orjson.OPT_SERIALIZE_NUMPY)


def _as_array(value: Any) -> Any:
    if isinstance(value, TokenIds):
        return value.array
    raise TypeError(f"{type(value).__name__} can't be written as JSON")
