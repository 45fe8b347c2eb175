"""The spool's file format: whole frames are read, a torn tail is seen and left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capture_proxy.spool.frames import HEADER_BYTES, Frame, Kind, Torn, pack, pack_u64, unpack, unpack_u64

entries = st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=50)), max_size=8)


def written(items: list[tuple[Kind, bytes]]) -> bytes:
    """A segment that holds these entries, numbered from 1."""
    return b"".join(pack(kind, seq, body) for seq, (kind, body) in enumerate(items, start=1))


@given(entries)
def test_what_was_packed_is_unpacked(items: list[tuple[Kind, bytes]]) -> None:
    """Kind, number, body and place survive."""
    frames = list(unpack(written(items)))
    assert all(isinstance(f, Frame) for f in frames)
    assert [(f.kind, f.body) for f in frames if isinstance(f, Frame)] == items
    assert [f.seq for f in frames if isinstance(f, Frame)] == list(range(1, len(items) + 1))


@given(entries, st.data())
def test_a_cut_anywhere_loses_only_what_it_cut(items: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    """A file cut at any byte gives exactly the frames that were whole before the cut."""
    whole = written(items)
    cut = data.draw(st.integers(0, len(whole)))
    read = list(unpack(whole[:cut]))
    frames = [f for f in read if isinstance(f, Frame)]
    ends, end = [], 0
    for _, body in items:
        end += HEADER_BYTES + len(body)
        ends.append(end)
    assert len(frames) == sum(1 for e in ends if e <= cut)
    is_clean = cut == 0 or cut in ends
    assert is_clean != any(isinstance(f, Torn) for f in read)


@given(entries.filter(bool), st.data())
def test_a_flipped_bit_ends_the_reading(items: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    """No damaged frame is ever given out: reading stops in front of it and says why."""
    whole = bytearray(written(items))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    read = list(unpack(bytes(whole)))
    assert isinstance(read[-1], Torn)
    original = list(unpack(written(items)))
    assert read[:-1] == original[: len(read) - 1]
    assert read[-1].offset <= at


@given(st.integers(0, 2**64 - 1), st.binary(max_size=10))
def test_numbers_in_bodies(value: int, rest: bytes) -> None:
    """A number at the start of a body comes back with what follows it."""
    assert unpack_u64(pack_u64(value) + rest) == (value, rest)
