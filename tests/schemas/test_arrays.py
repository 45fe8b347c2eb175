"""Token arrays: exact to and from little-endian bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import arrays


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_round_trip(ids: list[int]) -> None:
    """Ids come back equal, as int32, and take four bytes each."""
    data = arrays.pack_ids(ids)
    back = arrays.unpack_ids(data)
    assert back.dtype == np.int32
    assert back.tolist() == ids
    assert len(data) == 4 * len(ids)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_logprobs_round_trip(logprobs: list[float]) -> None:
    """Every float32 comes back bit for bit, minus infinity too."""
    back = arrays.unpack_logprobs(arrays.pack_logprobs(logprobs))
    assert back.dtype == np.float32
    assert back.tolist() == logprobs


@given(st.lists(st.integers(0, 1)))
def test_masks_round_trip(mask: list[int]) -> None:
    """A mask comes back equal, one byte for each token."""
    data = arrays.pack_mask(mask)
    assert arrays.unpack_mask(data).tolist() == mask
    assert data == bytes(mask)


def test_byte_order_is_little_endian_everywhere() -> None:
    """The wire's bytes don't depend on the array's own byte order."""
    assert arrays.pack_ids([1, 256]) == b"\x01\x00\x00\x00\x00\x01\x00\x00"
    assert arrays.pack_ids(np.array([1, 256], dtype=">i8")) == b"\x01\x00\x00\x00\x00\x01\x00\x00"
    assert arrays.pack_logprobs([-1.0]) == b"\x00\x00\x80\xbf"


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1, 2**64])
def test_an_id_that_does_not_fit_is_refused(bad: int) -> None:
    """An id beyond int32 raises instead of wrapping around."""
    with pytest.raises(ValueError, match="fit int32"):
        arrays.pack_ids([0, bad])


def test_fractions_are_no_ids() -> None:
    """A float array is refused as ids, since rounding would invent tokens."""
    with pytest.raises(ValueError, match="whole numbers"):
        arrays.pack_ids(np.array([1.5]))


def test_a_mask_beyond_a_byte_is_refused() -> None:
    """A mask value that doesn't fit a byte raises."""
    with pytest.raises(ValueError, match="uint8"):
        arrays.pack_mask([256])


@pytest.mark.parametrize("unpack", [arrays.unpack_ids, arrays.unpack_logprobs])
def test_torn_arrays_are_noticed(unpack: object) -> None:
    """Bytes that are no whole number of elements raise ArrayLengthError with the count."""
    with pytest.raises(arrays.ArrayLengthError, match="5 bytes"):
        unpack(b"\x00" * 5)  # type: ignore[operator]


def test_unpacked_arrays_are_read_only() -> None:
    """A view of a record's bytes can't be written to by accident."""
    with pytest.raises(ValueError, match="read-only"):
        arrays.unpack_ids(arrays.pack_ids([1]))[0] = 2
