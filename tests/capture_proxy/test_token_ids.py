"""Packed ids behave like the list that they stand for."""

from __future__ import annotations

import json

import pytest

from capture_proxy.token_ids import TokenIds, dump_json, packed_ids
from schemas import arrays

IDS = [1, 151_645, 2**31 - 1, 0]


def test_they_are_a_sequence_of_ints() -> None:
    """Length, places, slices, iteration, search, equality with lists and with one another."""
    ids = TokenIds(arrays.pack_ids(IDS))
    assert len(ids) == 4
    assert (ids[1], ids[-1], ids[1:3]) == (151_645, 0, IDS[1:3])
    assert [type(i) for i in ids] == [int] * 4
    assert type(ids[0]) is int
    assert list(ids) == [*ids] == IDS
    assert ids == IDS
    assert ids == IDS
    assert ids == TokenIds(arrays.pack_ids(IDS))
    assert ids != IDS[:3]
    assert ids != [*IDS[:3], 7]
    assert ids != "abcd"
    assert 151_645 in ids
    assert not TokenIds(b"")
    assert len({ids, TokenIds(arrays.pack_ids(IDS))}) == 1


def test_requests_are_written_with_either_kind() -> None:
    """The same JSON, whether a prompt is packed or a list; anything else that JSON can't spell is an error."""
    assert packed_ids(IDS) == packed_ids(TokenIds(arrays.pack_ids(IDS))) == arrays.pack_ids(IDS)
    packed = dump_json({"input_ids": TokenIds(arrays.pack_ids(IDS)), "n": 1.5})
    assert packed == dump_json({"input_ids": IDS, "n": 1.5})
    assert json.loads(packed) == {"input_ids": IDS, "n": 1.5}
    with pytest.raises(TypeError, match="object"):
        dump_json({"x": object()})
