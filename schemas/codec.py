"""Records to and from wire values: Avro in Confluent framing, headers in CloudEvents' Kafka binary mode.

Framing: one zero byte, the schema id as 4 bytes big-endian, the Avro body.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

import fastavro

from schemas import json_text, registry
from schemas.derive import avro_schema, field_hints, is_json, is_late, optional_of
from schemas.records import Record
from schemas.records.base import ReadsLate, WireEnum
from schemas.registry import UnknownSchemaIdError

__all__ = ["Encoded", "MalformedRecordError", "UnknownSchemaIdError", "decode", "encode", "schema_id_of"]

_MAGIC: Final = 0
_FRAME: Final = struct.Struct(">bI")
_CONTENT_TYPE: Final = b"application/avro"

# What a reader needs to count a record whose value it can't decode, and to know a result without fetching its tokens.
_IN_HEADERS: Final = (
    *("session_id", "group_id", "task_id", "policy_id", "lease_id", "writer", "call_seq", "type"),
    *("status", "boundary", "reward", "revision"),
)


class MalformedRecordError(ValueError):
    """A value that can't be decoded: a poison record, for the dead-letter topic."""

    is_retriable = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record ready to send: logical topic, key, framed value and headers."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


@functools.cache
def _parsed(schema_id: int) -> Any:
    return fastavro.parse_schema(registry.find(schema_id).schema)


@functools.cache
def _parsed_today(record_name: str) -> Any:
    return fastavro.parse_schema(avro_schema(registry.record_class(record_name)))


@functools.cache
def _resolves_to(schema_id: int) -> Any:
    """What a record of this schema is read as; None where that is the schema itself, which saves a quarter of the decoding."""
    frozen = registry.find(schema_id)
    today = _parsed_today(frozen.record)
    return None if _parsed(schema_id) == today else today


def _to_wire(value: Any) -> Any:
    # The commonest first: a record has dozens of values, and is written for every step of a session.
    if isinstance(value, str):
        return value if isinstance(value, WireEnum) or value.isascii() else _utf8(value)
    if value is None or isinstance(value, int | float | bytes):
        return value
    if isinstance(value, list | tuple):
        return [_to_wire(v) for v in value]
    if isinstance(value, dict):
        return {_to_wire(k): _to_wire(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return value


def _utf8(text: str) -> str:
    """The text with '?' for lone surrogates, which UTF-8, and so an Avro string, can't hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


@functools.cache
def _names(cls: type) -> tuple[tuple[str, Any], ...]:
    """Each field with how it is written."""
    return tuple((name, json_text.dump if is_json(hint) else _to_wire) for name, hint in field_hints(cls).items())


def _fields(record: Any) -> dict[str, Any]:
    cls: type = type(record)
    return {name: write(getattr(record, name)) for name, write in _names(cls)}


def encode(record: Record) -> Encoded:
    """Encode a record under its newest frozen schema.

    Raises MalformedRecordError when a field's value doesn't fit its type.
    """
    schema_id = registry.newest(record.NAME).schema_id
    out = io.BytesIO()
    out.write(_FRAME.pack(_MAGIC, schema_id))
    try:
        fastavro.schemaless_writer(out, _parsed(schema_id), _fields(record))
    except (ValueError, TypeError, KeyError, OverflowError) as exc:
        raise MalformedRecordError(f"{record.NAME} doesn't fit schema id {schema_id}: {exc}") from exc
    return Encoded(record.topic, _utf8(record.key).encode(), out.getvalue(), _headers(record))


def _headers(record: Record) -> list[tuple[str, bytes]]:
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", record.event_id.encode()),
        ("ce_type", f"io.polynya.{record.NAME}".encode()),
        ("ce_source", b"polynya"),
        ("ce_time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()),
        ("content-type", _CONTENT_TYPE),
    ]
    for name in _IN_HEADERS:
        value = getattr(record, name, None)
        if value not in (None, ""):
            headers.append((name, str(value).encode("utf-8", "replace")))
    return headers


def schema_id_of(value: bytes) -> int:
    """The schema id in a framed value; MalformedRecordError when it isn't framed."""
    if len(value) < _FRAME.size:
        raise MalformedRecordError(f"{len(value)} bytes are too short for Confluent framing (5 bytes and a body)")
    magic, schema_id = _FRAME.unpack_from(value)
    if magic != _MAGIC:
        raise MalformedRecordError(f"first byte is {magic}, Confluent framing starts with 0")
    return int(schema_id)


def decode(value: bytes) -> Record:
    """Decode a framed value into its record, with defaults for fields that its writer didn't know.

    Raises UnknownSchemaIdError (retriable) or MalformedRecordError (poison).
    """
    frozen = registry.find(schema_id_of(value))
    cls: Any = registry.record_class(frozen.record)
    body = io.BytesIO(value)
    body.seek(_FRAME.size)
    try:
        data: Any = fastavro.schemaless_reader(body, _parsed(frozen.schema_id), _resolves_to(frozen.schema_id))
    except Exception as exc:  # fastavro raises many types on torn bytes; all of them mean poison
        raise MalformedRecordError(f"{frozen.record} v{frozen.version} body doesn't decode: {exc!r}") from exc
    if body.read(1):
        raise MalformedRecordError(f"{frozen.record} v{frozen.version} has bytes behind its end")
    try:
        record: Record = _builder(cls)(data)
    except json_text.JsonTextError as exc:
        raise MalformedRecordError(f"{frozen.record} v{frozen.version}: {exc}") from exc
    return record


Convert = Callable[[Any], Any]


def _converter(hint: Any) -> Convert | None:
    """How to turn a decoded Avro value into the field's Python value; None when it already is."""
    if is_json(hint):
        return json_text.load
    if (inner := optional_of(hint)) is not None:
        return _each(_converter(inner), lambda of_inner: lambda v: None if v is None else of_inner(v))
    if get_origin(hint) is list:
        return _each(_converter(get_args(hint)[0]), lambda of_item: lambda v: list(map(of_item, v)))
    if isinstance(hint, type) and issubclass(hint, WireEnum):
        return _member_of(hint)
    if dataclasses.is_dataclass(hint):
        of_class: Any = hint
        return _builder(of_class)
    return None


def _each(conv: Convert | None, around: Callable[[Convert], Convert]) -> Convert | None:
    """The converter of what holds values; None when these need none."""
    return None if conv is None else around(conv)


def _member_of(enum: type[WireEnum]) -> Convert:
    """The member of a value, looked up: calling an enumeration takes ten times as long."""
    members: dict[Any, WireEnum] = {member.value: member for member in enum}
    return lambda v: members.get(v) or enum(v)


@functools.cache
def _builder(cls: Any) -> Convert:
    """Makes an object of a record's class, or of one inside it, from a whole Avro record; None stands for its defaults.

    The object takes over the decoded dictionary as its own: filled field by field it takes ten times as long, and a trajectory
    has dozens of objects.
    """
    if hasattr(cls, "__post_init__") or any(c.__dict__.get("__slots__") for c in cls.__mro__):
        raise TypeError(
            f"{cls.__name__} has to be a dataclass without slots and __post_init__: decoding sets its __dict__"
        )
    hints = field_hints(cls)
    late = [name for name, hint in hints.items() if is_late(hint)]
    convs = [(name, conv) for name in hints if name not in late and (conv := _converter(hints[name])) is not None]
    new, adopt = object.__new__, object.__setattr__  # a frozen class refuses the plain assignment

    def build(data: dict[str, Any] | None) -> Any:
        if not data:
            return cls()
        for name, conv in convs:
            data[name] = conv(data[name])
        if late:
            data[ReadsLate.UNREAD] = {name: data.pop(name) for name in late}
        made = new(cls)
        adopt(made, "__dict__", data)
        return made

    return build
