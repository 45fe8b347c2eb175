"""Token arrays on the wire: little-endian bytes to and from numpy.

Avro arrays of numbers decode about 300 times slower than one bytes field, so token ids (int32), logprobs
(float32) and loss masks (uint8) travel as raw little-endian bytes; the field's doc names the dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

ID_DTYPE: Final = np.dtype("<i4")
LOGPROB_DTYPE: Final = np.dtype("<f4")
MASK_DTYPE: Final = np.dtype("u1")

DtypeName = Literal["int32", "float32", "uint8"]

# The dtype that a field's doc names, as numpy spells its little-endian form.
DTYPES: Final[dict[str, np.dtype[np.generic]]] = {"int32": ID_DTYPE, "float32": LOGPROB_DTYPE, "uint8": MASK_DTYPE}


class ArrayLengthError(ValueError):
    """The bytes of a token array aren't a whole number of its elements."""


def _pack(values: Iterable[float] | NDArray[np.generic], dtype: np.dtype[np.generic]) -> bytes:
    array = values if isinstance(values, np.ndarray) else np.asarray(list(values))
    if array.size == 0:
        return b""
    if dtype.kind in "iu":
        info = np.iinfo(np.dtype(dtype.str))
        if array.dtype.kind not in "iub" or array.min() < info.min or array.max() > info.max:
            raise ValueError(f"values don't fit {dtype}: use whole numbers between {info.min} and {info.max}")
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def _unpack(data: bytes, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    if len(data) % dtype.itemsize:
        raise ArrayLengthError(f"{len(data)} bytes are no whole number of {dtype} elements of {dtype.itemsize} bytes")
    return np.frombuffer(data, dtype=dtype)


def pack_ids(ids: Iterable[int] | NDArray[np.generic]) -> bytes:
    """Token ids, shape (n,), as 4·n little-endian int32 bytes; ValueError when one doesn't fit."""
    return _pack(ids, ID_DTYPE)


def unpack_ids(data: bytes) -> NDArray[np.int32]:
    """The read-only int32 array of shape (n,) in `data`; ArrayLengthError for a torn array."""
    return _unpack(data, ID_DTYPE)  # type: ignore[return-value]


def pack_logprobs(logprobs: Iterable[float] | NDArray[np.generic]) -> bytes:
    """Natural-log probabilities, shape (n,), as 4·n little-endian float32 bytes."""
    return _pack(logprobs, LOGPROB_DTYPE)


def unpack_logprobs(data: bytes) -> NDArray[np.float32]:
    """The read-only float32 array of shape (n,) in `data`; ArrayLengthError for a torn array."""
    return _unpack(data, LOGPROB_DTYPE)  # type: ignore[return-value]


def pack_mask(mask: Iterable[int] | NDArray[np.generic]) -> bytes:
    """A loss mask of 0 and 1, shape (n,), one byte each; ValueError when one doesn't fit a byte."""
    return _pack(mask, MASK_DTYPE)


def unpack_mask(data: bytes) -> NDArray[np.uint8]:
    """The read-only uint8 array of shape (n,) in `data`."""
    return _unpack(data, MASK_DTYPE)  # type: ignore[return-value]
