"""Content encodings of request bodies, undone without ever holding more than the limit: a small body can stand for gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Final

import zstandard

_PIECE_BYTES: Final = 1 << 18


class TooLongError(Exception):
    """The decoded body is longer than the limit."""


def decode(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """A body without its content encoding. Raises ValueError for one that isn't what it says, TooLongError above the limit."""
    make = _DECODERS.get(encoding.strip().lower())
    if make is None:
        raise ValueError(f"{encoding[:40]!r} isn't known here: send gzip, deflate or zstd")
    pieces, size = [], 0
    try:
        for piece in make(body):
            size += len(piece)
            if size > limit_bytes:
                raise TooLongError(f"more than {limit_bytes} bytes when decoded")
            pieces.append(piece)
    except (zlib.error, zstandard.ZstdError, EOFError) as exc:
        raise ValueError(str(exc)) from exc
    return b"".join(pieces)


def _identity(body: bytes) -> Iterator[bytes]:
    yield body


def _gzip(body: bytes) -> Iterator[bytes]:
    while body:  # a body may have several members
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        yield from _inflate(member, body)
        body = member.unused_data


def _deflate(body: bytes) -> Iterator[bytes]:
    try:
        zlib.decompressobj().decompress(body[:2])
        wbits = zlib.MAX_WBITS
    except zlib.error:
        wbits = -zlib.MAX_WBITS  # some clients leave zlib's header out
    yield from _inflate(zlib.decompressobj(wbits=wbits), body)


def _inflate(member: zlib._Decompress, body: bytes) -> Iterator[bytes]:
    while not member.eof:
        piece = member.decompress(body, _PIECE_BYTES)
        body = member.unconsumed_tail
        if not piece and not body and not member.eof:
            raise EOFError("the body is cut")
        yield piece


def _zstd(body: bytes) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor().stream_reader(BytesIO(body), read_across_frames=True) as reader:
        while piece := reader.read(_PIECE_BYTES):
            yield piece


_DECODERS: Final[dict[str, Callable[[bytes], Iterator[bytes]]]] = {
    "": _identity,
    "identity": _identity,
    "none": _identity,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
