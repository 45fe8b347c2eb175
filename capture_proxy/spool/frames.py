"""The spool's file format: one CRC-framed entry after the other, so that a torn tail is seen and left out.

A frame is `length u32 | crc32 u32 | kind u8 | seq u64 | body`, little-endian; the checksum covers kind, seq and body.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_HEADER: Final = struct.Struct("<IIBQ")
_TAGGED: Final = struct.Struct("<BQ")
_U64: Final = struct.Struct("<Q")

HEADER_BYTES: Final = _HEADER.size

# No record comes near it; a larger length is a torn or foreign header.
MAX_BODY_BYTES: Final = 1 << 30


class Kind(IntEnum):
    """What a frame holds."""

    RECORD = 1
    """A framed Avro value that belongs on a topic."""
    STARTED = 2
    """CallStarted: the record of a call as far as it is known at its start; never sent as it stands."""
    ACKED = 3
    """Kafka has every entry up to this seq (u64)."""
    CARRIED_LEASE = 4
    """At the head of a segment: an open lease from earlier segments (u64 last call_seq, then its SessionOpened)."""
    CARRIED_CALL = 5
    """At the head of a segment: a call without a record from earlier segments."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry as read: `offset` is where its header starts in the segment's file."""

    kind: Kind
    seq: int
    body: bytes
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, header included."""
        return HEADER_BYTES + len(self.body)


def pack(kind: Kind, seq: int, body: bytes) -> bytes:
    """One frame's bytes."""
    crc = zlib.crc32(body, zlib.crc32(_TAGGED.pack(kind, seq)))
    return _HEADER.pack(len(body), crc, kind, seq) + body


def pack_u64(value: int) -> bytes:
    """A number as a frame's body (or its start)."""
    return _U64.pack(value)


def unpack_u64(body: bytes) -> tuple[int, bytes]:
    """The number at the start of a body, and the rest."""
    return int(_U64.unpack_from(body)[0]), body[_U64.size :]


@dataclass(frozen=True, slots=True)
class Torn:
    """Reading ended before the end of the file: at `offset`, with `lost_bytes` behind it, because of `reason`."""

    offset: int
    lost_bytes: int
    reason: str


def unpack(data: bytes) -> Iterator[Frame | Torn]:
    """The whole frames at the start of a segment's bytes; where something else follows them, `Torn` as the last value."""
    offset = 0
    view = memoryview(data)
    while offset < len(data):
        reason = ""
        if len(data) - offset < HEADER_BYTES:
            reason = "short header"
        else:
            length, crc, kind, seq = _HEADER.unpack_from(data, offset)
            end = offset + HEADER_BYTES + length
            if length > MAX_BODY_BYTES or end > len(data):
                reason = "short body"
            else:
                body = bytes(view[offset + HEADER_BYTES : end])
                if zlib.crc32(body, zlib.crc32(_TAGGED.pack(kind, seq))) != crc:
                    reason = "bad checksum"
                elif kind not in Kind.__members__.values():
                    reason = f"unknown kind {kind}"
        if reason:
            yield Torn(offset, len(data) - offset, reason)
            return
        yield Frame(Kind(kind), seq, body, offset)
        offset = end
