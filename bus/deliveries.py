"""What readers get and writers are told: a record where it stands on the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.codec import MalformedRecordError, decode, schema_id_of
from schemas.records import Record
from schemas.registry import UnknownSchemaIdError

Start = Literal["earliest", "latest"] | int | Mapping[tuple[str, int], int]
"""Where a reader begins: an end of the log, a time in UTC epoch ms, or the next offset for each (topic, partition)."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a record stands."""

    topic: str
    """The catalogue's name, without the prefix."""
    partition: int
    offset: int
    """-1 in the rare case that the broker had the record already and no longer knows where."""


@dataclass(slots=True)
class Delivery:
    """One record as a reader gets it. Not frozen only because it keeps what it has decoded."""

    topic: str
    """The catalogue's name, without the prefix."""
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    """The framed record; of a claim check, once resolved, the blob. Empty for a tombstone."""
    header_list: tuple[tuple[str, bytes], ...] = ()
    is_tombstone: bool = False
    """The key's value was deleted; there is nothing to decode."""
    problem: Exception | None = field(default=None, repr=False, compare=False)
    """Why the value couldn't be had (its blob is missing or corrupt); `decode` raises it."""
    record: Record | None = field(default=None, repr=False, compare=False)
    """The decoded record, after `decode`."""

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers by name; of a repeated name the last."""
        return dict(self.header_list)

    @property
    def position(self) -> Position:
        """Where it stands."""
        return Position(self.topic, self.partition, self.offset)

    def decode(self) -> Record:
        """The record, decoded once.

        Raises `UnknownSchemaIdError` (retriable: this process is too old), `MalformedRecordError` (poison; also for a
        tombstone, which has no record) or the claim check's `BlobMissingError` or `BlobCorruptError`.
        """
        if self.record is None:
            if self.problem is not None:
                raise self.problem
            if self.is_tombstone:
                raise MalformedRecordError(f"{self.where} is a tombstone: there is no record to decode")
            try:
                self.record = decode(self.value)
            except KeyError as error:
                # The registry file is newer than this process: it names a record that no class here reads.
                raise UnknownSchemaIdError(schema_id_of(self.value)) from error
        return self.record

    @property
    def where(self) -> str:
        """`topic[partition]@offset`, for messages."""
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def with_value(self, value: bytes) -> Delivery:
        """The same delivery with a resolved value."""
        return dataclasses.replace(self, value=value, record=None, problem=None)

    def with_problem(self, problem: Exception) -> Delivery:
        """The same delivery whose value couldn't be had."""
        return dataclasses.replace(self, record=None, problem=problem)
